"""What a search varies: ranges and choices of config keys, checked before anything starts.

::

    [space]
    "optim.lr" = {low = 1e-3, high = 4e-3, log = true}
    "cell.rank" = {low = -20, high = 100, floor = 0}  # whatever is drawn below 0 counts as 0
    "head.kind" = {choices = ["moc", "mos"]}
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic.fields import FieldInfo

from lm.config import COMMAND_LINE, C, Resolved, Setting, known_tables, require_key, with_settings
from lm.errors import ConfigError
from lm.presets import find_space
from lm.suggest import did_you_mean
from lm.tomlfile import Lines, read_toml

TABLE = "space"
NAMES = ("low", "high", "log", "floor", "choices")
EXAMPLE = '"optim.lr" = {low = 1e-3, high = 4e-3, log = true}'

Drawn = float | int | str  # as the journal has it: a number, or one of ``Parameter.choices``


@dataclass(frozen=True, slots=True)
class Parameter:
    """One key and what it may be: a range of numbers, both ends included, or one of several choices."""

    key: str
    where: str  # FILE:LINE, the provenance of its values
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    floor: float | None = None  # lower values count as this one
    whole: bool = False  # integers only
    choices: tuple[str, ...] = ()  # as JSON

    def setting(self, drawn: Drawn) -> Setting:
        """The value that the config gets."""
        if isinstance(drawn, str):
            return Setting(json.loads(drawn), self.where)
        return Setting(drawn if self.floor is None else max(self.floor, drawn), self.where)

    def entry(self) -> dict[str, Any]:
        """The range or the choices, as the file has them."""
        if self.choices:
            return {"choices": [json.loads(choice) for choice in self.choices]}
        floor = {} if self.floor is None else {"floor": self.floor}
        return {"low": self.low, "high": self.high, "log": self.log, **floor}


Space = tuple[Parameter, ...]


def space_of(entries: Mapping[str, Mapping[str, Any]], where: str) -> Space:
    """The space whose entries (:meth:`Parameter.entry`) these are."""
    found = []
    for key, entry in entries.items():
        choices = tuple(json.dumps(choice) for choice in entry.get("choices", ()))
        low, high = entry.get("low", 0.0), entry.get("high", 0.0)
        whole = not choices and isinstance(low, int)
        parameter = Parameter(
            key, where, low, high, entry.get("log", False), entry.get("floor"), whole, choices
        )
        found.append(parameter)
    return tuple(found)


def load_space(source: str, base: Resolved[C], schema: type[C], *, family: str) -> Space:
    """The parameters of a file, or of a space that comes with Highrank, in the order of the file.

    Raises ConfigError, one line, where a key is unknown or also given by ``--set``, bounds are ill-typed, in
    the wrong order or not valid in ``base``, or there is nothing to search.
    """
    path = find_space(source, family)
    data, lines = read_toml(path)
    if others := [name for name in data if name != TABLE]:
        hint = did_you_mean(others[0], [TABLE]) or f"; all that a space has is the table [{TABLE}]"
        raise ConfigError(f"{path}:{lines[(others[0],)]}: unknown name {others[0]}{hint}")
    table = data.get(TABLE)
    if not isinstance(table, dict) or not table:
        raise ConfigError(f"{path}: an empty space; write [{TABLE}], and below it keys as in {EXAMPLE}")
    found: dict[str, Parameter] = {}
    for key, entry, line in _entries(table, lines, (TABLE,), schema):
        where = f"{path}:{line}" if line else str(path)
        if key in found:
            raise ConfigError(f"{where}: {key} is there twice; remove one")
        if base.provenance.get(key) == COMMAND_LINE:
            raise ConfigError(f"{where}: {key} is in the space and in --set; remove one of the two")
        found[key] = _parameter(key, entry, where, require_key(key, schema, where))
        _require_valid(found[key], base, schema)
    return tuple(found.values())


def _entries(
    table: Mapping[str, object], lines: Lines, at: tuple[str, ...], schema: type[C]
) -> Iterator[tuple[str, object, int]]:
    """Dotted key, entry and line; a key may be quoted as a whole, or be one of nested tables."""
    for name, value in table.items():
        here = (*at, name)
        key = ".".join(here[1:])
        if isinstance(value, Mapping) and key in known_tables(schema):
            yield from _entries(value, lines, here, schema)
        else:
            yield key, value, lines.get(here, 0)


def _parameter(key: str, entry: object, where: str, field: FieldInfo) -> Parameter:
    if key in ("extends", "about"):
        raise ConfigError(f"{where}: {key} cannot be searched; remove it")
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}: {key} needs a range or choices, as in {EXAMPLE}")
    for name in entry:
        if name not in NAMES:
            hint = did_you_mean(name, NAMES) or f"; it may have {', '.join(NAMES)}"
            raise ConfigError(f"{where}: {key} has an unknown {name}{hint}")
    if "choices" in entry:
        return _choice(key, entry, where)
    return _range(key, entry, where, field)


def _choice(key: str, entry: Mapping[str, object], where: str) -> Parameter:
    choices = entry["choices"]
    if len(entry) > 1:
        raise ConfigError(f"{where}: {key} has choices and a range; remove one of the two")
    if not isinstance(choices, list) or not choices:
        raise ConfigError(f"{where}: {key} choices must be a list, as in choices = [1, 2]")
    try:
        texts = tuple(json.dumps(choice, allow_nan=False) for choice in choices)
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: {key} choices must be numbers, texts, true, false, or lists") from None
    if len(set(texts)) < len(texts):
        raise ConfigError(f"{where}: {key} has the same choice twice; remove one")
    return Parameter(key, where, choices=texts)


def _range(key: str, entry: Mapping[str, object], where: str, field: FieldInfo) -> Parameter:
    types = {field.annotation, *get_args(field.annotation)}
    if not types & {int, float}:
        raise ConfigError(f"{where}: {key} is no number, so it has no range; give choices = […]")
    whole = float not in types
    numbers: dict[str, float] = {}
    for name in ("low", "high", "floor"):
        value = entry.get(name)
        if value is None and name == "floor":
            continue
        if value is None:
            raise ConfigError(f"{where}: {key} has no {name}; give low and high, or choices")
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise ConfigError(
                f"{where}: {key} {name} must be {'an integer' if whole else 'a number'}, got {value!r}"
            )
        if not math.isfinite(value):
            raise ConfigError(f"{where}: {key} {name} must be finite, got {value!r}")
        numbers[name] = value if whole else float(value)
    log = entry.get("log", False)
    if not isinstance(log, bool):
        raise ConfigError(f"{where}: {key} log must be true or false, got {log!r}")
    low, high = numbers["low"], numbers["high"]
    if low >= high:
        raise ConfigError(f"{where}: {key} low must be below high, got {low} and {high}")
    if log and low <= 0:
        raise ConfigError(f"{where}: {key} low must be above 0 where log = true, got {low}")
    return Parameter(key, where, low, high, log, numbers.get("floor"), whole)


def _require_valid(parameter: Parameter, base: Resolved[C], schema: type[C]) -> None:
    """Raises ConfigError where an end of the range, or a choice, is not valid in the config searched from."""
    for drawn in parameter.choices or (parameter.low, parameter.high):
        with_settings(base, {parameter.key: parameter.setting(drawn)}, schema)
