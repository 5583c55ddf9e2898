"""Hyper-parameter search for both families of models."""
