"""Experiments with known truth: the softmax bottleneck and the reverse copy task."""
