"""The check that transformers is installed, free of it."""

import importlib.util

from lm.errors import ConfigError


def require_transformers(what: str) -> None:
    """Raise ConfigError if transformers, which ``what`` needs, is not installed."""
    if not importlib.util.find_spec("transformers"):
        raise ConfigError(f"{what}: needs transformers; install it with pip install 'highrank[hf]'")
