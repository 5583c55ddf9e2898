"""Experiments with known truth: softmax bottleneck and reverse copy."""
