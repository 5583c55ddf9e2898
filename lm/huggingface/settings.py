"""Configs of ours inside those of transformers."""

from typing import Any


def tuples(value: Any) -> Any:
    """Convert the arrays of JSON to tuples, the type of our fields."""
    if isinstance(value, dict):
        return {key: tuples(inner) for key, inner in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value
