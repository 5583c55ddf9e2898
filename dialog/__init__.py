"""Encoder-decoder dialog models on the heads and the engine of :mod:`lm`."""
