"""Hyper-parameter search, of whatever family."""
