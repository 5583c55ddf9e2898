"""The shared core (heads, recurrence, engine, checkpoints, configs) and the language models."""

__version__ = "0.1.0"
