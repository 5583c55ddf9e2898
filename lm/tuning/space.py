"""Search spaces: ranges and choices of config keys, validated before the search.

::

    [space]
    "optim.lr" = {low = 1e-3, high = 4e-3, log = true}
    "cell.rank" = {low = -20, high = 100, floor = 0}  # values below 0 become 0
    "model.output_dropout" = {low = 0.0, high = 0.95, also = ["head.latent_dropout"]}  # both get one value
    "head.kind" = {choices = ["moc", "mos"]}
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from lm.config.load import C, Resolved, require_key, require_read, with_settings
from lm.config.presets import find_space
from lm.config.section import known_tables
from lm.config.settings import COMMAND_LINE, Setting, Settings
from lm.config.suggest import did_you_mean
from lm.config.tomlfile import Lines, read_toml
from lm.errors import ConfigError

TABLE = "space"
ENTRY_KEYS = ("low", "high", "log", "floor", "choices", "also")
EXAMPLE = '"optim.lr" = {low = 1e-3, high = 4e-3, log = true}'

SearchValue = float | int | str  # a value in the journal: a number, or one of ``Parameter.choices``


@dataclass(frozen=True, slots=True)
class Parameter:
    """A searched key with its range of numbers, both ends included, or its choices."""

    key: str
    where: str  # provenance, FILE:LINE
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    floor: float | None = None  # lower values are raised to it
    whole: bool = False  # integers only
    choices: tuple[str, ...] = ()  # as JSON
    also: tuple[str, ...] = ()  # keys that get the same value

    @property
    def ends(self) -> tuple[SearchValue, ...]:
        """All choices, or both ends of the range."""
        return self.choices or (self.low, self.high)

    def settings(self, drawn: SearchValue) -> Settings:
        """Config values by key, for a drawn value."""
        value = json.loads(drawn) if isinstance(drawn, str) else drawn
        if self.floor is not None:
            value = max(self.floor, value)
        return dict.fromkeys((self.key, *self.also), Setting(value, self.where))

    def entry(self) -> dict[str, Any]:
        """Range or choices in the notation of the file."""
        also = {"also": list(self.also)} if self.also else {}
        if self.choices:
            return {"choices": [json.loads(choice) for choice in self.choices], **also}
        floor = {} if self.floor is None else {"floor": self.floor}
        return {"low": self.low, "high": self.high, "log": self.log, **floor, **also}


Space = tuple[Parameter, ...]


def settings_of(space: Space, drawn: Mapping[str, SearchValue]) -> Settings:
    """Config values of all keys, for the drawn value of each parameter."""
    return {
        key: setting
        for parameter in space
        for key, setting in parameter.settings(drawn[parameter.key]).items()
    }


def space_of(entries: Mapping[str, Mapping[str, Any]], where: str) -> Space:
    """Build a space from its entries (:meth:`Parameter.entry`)."""
    found = []
    for key, entry in entries.items():
        choices = tuple(json.dumps(choice) for choice in entry.get("choices", ()))
        low, high = entry.get("low", 0.0), entry.get("high", 0.0)
        whole = not choices and isinstance(low, int)
        log, floor, also = entry.get("log", False), entry.get("floor"), tuple(entry.get("also", ()))
        found.append(Parameter(key, where, low, high, log, floor, whole, choices, also))
    return tuple(found)


def load_space(source: str, base: Resolved[C], schema: type[C], *, family: str) -> Space:
    """Load the parameters of a file, or of a space of Highrank, in the order of the file.

    Raises a one-line ConfigError if a key is unknown, also set by ``--set``, or read by nothing. The same
    holds for bounds of a wrong type or in the wrong order, and for an empty space. Bounds must be valid in
    ``base``, or there with a value of one other parameter.
    """
    path = find_space(source, family)
    data, lines = read_toml(path)
    if others := [name for name in data if name != TABLE]:
        hint = did_you_mean(others[0], [TABLE]) or f"; a space contains only the table [{TABLE}]"
        raise ConfigError(f"{path}:{lines[(others[0],)]}: unknown name {others[0]}{hint}")
    table = data.get(TABLE)
    if not isinstance(table, dict) or not table:
        raise ConfigError(f"{path}: empty space; write [{TABLE}], and below it keys as in {EXAMPLE}")
    found: list[Parameter] = []
    taken: set[str] = set()
    for key, entry, line in _entries(table, lines, (TABLE,), schema):
        where = f"{path}:{line}" if line else str(path)
        field = require_key(key, schema, where)
        parameter = replace(_parameter(key, entry, where, field), also=_also(key, entry, where, schema))
        for name in (key, *parameter.also):
            if name in taken:
                raise ConfigError(f"{where}: {name} occurs twice; remove one")
            if base.provenance.get(name) == COMMAND_LINE:
                raise ConfigError(f"{where}: {name} is both in the space and in --set; remove one of them")
            taken.add(name)
        found.append(parameter)
    space = tuple(found)
    for parameter in space:
        _require_valid(parameter, space, base, schema)
        for name in (parameter.key, *parameter.also):
            require_read(base.config, name, f"{parameter.where}: ", taken)
    return space


def _also(key: str, entry: object, where: str, schema: type[C]) -> tuple[str, ...]:
    """Keys that get the same value."""
    also = entry.get("also", []) if isinstance(entry, Mapping) else []
    if not isinstance(also, list) or not all(isinstance(name, str) for name in also):
        raise ConfigError(f'{where}: {key} also must be a list of keys, as in also = ["head.latent_dropout"]')
    for name in also:
        require_key(name, schema, where)
    return tuple(also)


def _entries(
    table: Mapping[str, object], lines: Lines, at: tuple[str, ...], schema: type[C]
) -> Iterator[tuple[str, object, int]]:
    """Yield dotted key, entry and line. A key may be quoted as a whole, or written as nested tables."""
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
        if name not in ENTRY_KEYS:
            hint = did_you_mean(name, ENTRY_KEYS) or f"; choose from {', '.join(ENTRY_KEYS)}"
            raise ConfigError(f"{where}: {key} has an unknown {name}{hint}")
    if "choices" in entry:
        return _choice(key, entry, where)
    return _range(key, entry, where, field)


def _choice(key: str, entry: Mapping[str, object], where: str) -> Parameter:
    choices = entry["choices"]
    if entry.keys() - {"choices", "also"}:
        raise ConfigError(f"{where}: {key} has both choices and a range; remove one of them")
    if not isinstance(choices, list):
        raise ConfigError(f"{where}: {key} choices must be a list, as in choices = [1, 2]")
    if not choices:
        raise ConfigError(f"{where}: {key} has no choices; name one at least, as in choices = [1, 2]")
    try:
        texts = tuple(json.dumps(choice, allow_nan=False) for choice in choices)
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: {key} choices must be numbers, texts, true, false, or lists") from None
    if len(set(texts)) < len(texts):
        raise ConfigError(f"{where}: {key} has the same choice twice; remove one")
    return Parameter(key, where, choices=texts)


def _types(annotation: object) -> set[object]:
    """A type, or those of a union, without their limits."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _types(parts[0])
    if origin in (Union, UnionType):
        return set[object]().union(*map(_types, parts))
    return {annotation}


def _range(key: str, entry: Mapping[str, object], where: str, field: FieldInfo) -> Parameter:
    types = _types(field.annotation)
    if not types & {int, float}:
        raise ConfigError(f"{where}: {key} is not a number, so it has no range; give choices = […]")
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
        if not abs(value) <= sys.float_info.max:  # nan too, and whole numbers beyond
            raise ConfigError(f"{where}: {key} {name} must be finite, got {value!r}")
        numbers[name] = value if whole else float(value)
    log = entry.get("log", False)
    if not isinstance(log, bool):
        raise ConfigError(f"{where}: {key} log must be true or false, got {log!r}")
    low, high = numbers["low"], numbers["high"]
    if low >= high:
        raise ConfigError(f"{where}: {key} low must be below high, got {low} and {high}")
    if numbers.get("floor", low) >= high:
        raise ConfigError(f"{where}: {key} floor must be below high, got {numbers['floor']} and {high}")
    if log and low <= 0:
        raise ConfigError(f"{where}: {key} low must be above 0 with log = true, got {low}")
    return Parameter(key, where, low, high, log, numbers.get("floor"), whole)


def _require_valid(parameter: Parameter, space: Space, base: Resolved[C], schema: type[C]) -> None:
    """Raise ConfigError if an end of the range, or a choice, is invalid in the base config.

    It may need a value of one other parameter, as ``head.components`` above 1 need another ``head.kind``.
    """
    others = [other.settings(value) for other in space if other is not parameter for value in other.ends]
    for drawn in parameter.ends:
        settings = parameter.settings(drawn)
        try:
            with_settings(base, settings, schema)
        except ConfigError:
            if not any(_is_valid(base, settings | other, schema) for other in others):
                raise


def _is_valid(base: Resolved[C], settings: Settings, schema: type[C]) -> bool:
    try:
        with_settings(base, settings, schema)
    except ConfigError:
        return False
    return True
