"""Settings of a config: values from files and the command line by dotted key, and their places."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from lm.config.section import known_keys
from lm.errors import ConfigError

DEFAULT, COMMAND_LINE = "default", "--set"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value from a file or the command line, and its place."""

    value: object
    where: str


Settings = dict[str, Setting]


def named_keys(place: str, overrides: Iterable[str]) -> list[str]:
    """Names of the keys that ``KEY=VALUE`` texts change, each after the option or command that has them."""
    return [f"{place} {key}" for key in keys_of(overrides)]


def keys_of(overrides: Iterable[str]) -> list[str]:
    """The keys of ``section.key=value`` texts."""
    return [text.partition("=")[0].strip() for text in overrides]


def require_distinct(names: Sequence[str]) -> None:
    """Raise ConfigError if a user gave an option or a key twice."""
    if repeated := [name for number, name in enumerate(names) if name in names[:number]]:
        raise ConfigError(f"{repeated[0]}: given twice; leave out one of the two")


def nested(settings: Settings, schema: type[BaseModel]) -> dict[str, Any]:
    """Settings as tables of values."""
    keys, nested = known_keys(schema), dict[str, Any]()
    for key, setting in settings.items():
        *tables, name = key.split(".")
        place = nested
        for table in tables:
            place = place.setdefault(table, {})
        empty = setting.value == "none" and type(None) in get_args(keys[key].annotation)
        place[name] = None if empty else _frozen(setting.value)
    return nested


def _frozen(value: object) -> object:
    """Convert arrays to tuples, the type of strict fields."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
