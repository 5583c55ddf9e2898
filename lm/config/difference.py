"""Comparison of configs: values by dotted key, and the keys that differ."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from lm.disk.jsonfile import JSON

Flat = dict[str, JSON]


def flat(values: Mapping[str, Any], prefix: str = "") -> Flat:
    """The values of nested tables by dotted key."""
    found: Flat = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def flat_config(config: BaseModel) -> Flat:
    """The JSON values of a config by dotted key."""
    return flat(config.model_dump(mode="json"))


def completed(saved: Flat, schema: type[BaseModel], prefix: str = "") -> Flat:
    """Saved values of a config, with the defaults of keys that are newer than the file.

    ``prefix`` stands before the keys of the config.
    """
    return flat(schema().model_dump(mode="json"), prefix) | saved


def changed_keys(was: Flat, now: Flat) -> list[str]:
    """The keys with different values, sorted; an absent key equals null."""
    return sorted(key for key in was.keys() | now.keys() if was.get(key) != now.get(key))


def changes_text(keys: Sequence[str], was: Flat, now: Flat, most: int) -> str:
    """``KEY = NEW (was OLD)`` for at most ``most`` keys, and the number of the others."""
    told = ", ".join(f"{key} = {_shown(now, key)} (was {_shown(was, key)})" for key in keys[:most])
    return f"{told} and {len(keys) - most} more" if len(keys) > most else told


def _shown(values: Flat, key: str) -> str:
    return ascii(json.dumps(values[key], ensure_ascii=False))[1:-1][:60] if key in values else "absent"
