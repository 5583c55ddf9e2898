"""Settings of a config: values from files and the command line by dotted key, and their places."""

from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from lm.config.section import known_keys

DEFAULT, COMMAND_LINE = "default", "--set"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value from a file or the command line, and its place."""

    value: object
    where: str


Settings = dict[str, Setting]


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
