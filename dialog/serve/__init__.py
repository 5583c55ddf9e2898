"""Trained dialog models as chat models of an HTTP API."""
