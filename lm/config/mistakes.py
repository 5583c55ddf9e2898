"""Messages about mistakes in configs, in one line: place, key, expected and given value, remedy."""

import re
import shlex
from collections.abc import Collection, Mapping
from typing import Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from lm.config.own_remedy import OwnRemedyError
from lm.config.section import deciding_keys, known_keys, known_tables, off_values
from lm.config.settings import COMMAND_LINE, DEFAULT, Setting, Settings, nested
from lm.config.suggest import LONGEST_NAME, did_you_mean
from lm.config.write import literal, setting_text

WORDING = {  # pydantic's wording of expectations, and ours
    "Input should be": "must be",
    "a valid boolean": "true or false",
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid string": "a string",
    "a valid tuple": "a list",
    "Tuple should have": "must have",
    " after validation": "",
}


def in_our_words(message: str) -> str:
    """A message of pydantic with our words for what it expects."""
    for theirs, ours in WORDING.items():
        message = message.replace(theirs, ours)
    return message


def unknown(
    name: str, schema: type[BaseModel], *, is_table: bool, sections: Collection[str] | None = None
) -> str:
    """The message for an unknown key or table. It suggests names of the ``sections``; None: of all."""
    keys, tables = known_keys(schema), known_tables(schema)
    if sections is not None:
        keys = {key: field for key, field in keys.items() if key.partition(".")[0] in sections}
        tables = tuple(table for table in tables if table.partition(".")[0] in sections)
    if not name:
        return "a key is missing before =; write it as in train.seed=2"
    if name in tables:
        first = next(key for key in keys if key.startswith(f"{name}."))
        return f"{name} is a table; set one of its keys, as in {first}"
    if owner := next((key for key in keys if name.startswith(f"{key}.")), ""):
        return f"{owner} has no keys below it; set {owner} itself"
    if is_table:
        return f"unknown table [{name[:LONGEST_NAME]}]" + (
            did_you_mean(name, tables) or f"; tables are {', '.join(tables)}"
        )
    hint = did_you_mean(name.replace("updates", "steps"), keys)  # as the texts call them
    if not hint:  # perhaps the field's longer name: learning_rate for lr
        table, _, key = name.rpartition(".")
        words = key.casefold().replace("_", " ").replace("-", " ")
        said = re.compile(rf"\b{re.escape(words)}\b")
        told = [key for key, field in keys.items() if len(words) > 1 and said.search(_about(field))]
        siblings = [key.rpartition(".")[2] for key in keys if key.rpartition(".")[0] == table]
        listed = (
            f"[{table}] has {', '.join(siblings)}" if table in tables else f"tables are {', '.join(tables)}"
        )
        hint = f"; did you mean {told[0]}?" if told else f"; {listed}"
    return f"unknown key {name if len(name) <= LONGEST_NAME else f'{name[:LONGEST_NAME]}…'}{hint}"


def invalid(error: ValidationError, settings: Settings, changes: Settings, schema: type[BaseModel]) -> str:
    """One line on the first error of ``settings`` with ``changes``: place, key, problem, value or remedy."""
    first, merged, keys = error.errors()[0], settings | changes, known_keys(schema)
    location = [str(part) for part in first["loc"]]
    key = ".".join(location)
    while location and key not in keys and key not in known_tables(schema):
        location.pop()
        key = ".".join(location)
    message = first["msg"].removeprefix("Value error, ")
    if key not in keys:
        return _inconsistent(key, message, first.get("ctx", {}).get("error"), settings, changes, schema)
    if key not in merged:
        return f"missing key {key}: set it in the config, or with --set {key}=…"
    setting, part = merged[key], ""
    if first["type"] in ("missing", "too_long", "too_short"):
        types = get_args(keys[key].annotation)
        number = f"{len(types)} values"
        if Ellipsis in types:
            most = first.get("ctx", {}).get("max_length")
            number = f"at most {most:,} values" if most else "one value or more"
        message = f"Input should be a list of {number}"
    elif isinstance(first["loc"][-1], int):
        part = "every value "
    message = in_our_words(message)
    hint = (
        did_you_mean(setting.value, _choices(keys[key].annotation)) if isinstance(setting.value, str) else ""
    )
    said = f"{message}, got {shortened(setting.value)}{hint}"
    example = (key, keys[key].get_default())
    if first["type"] == "tuple_type" and example[1]:
        typed = f"{COMMAND_LINE} {shlex.quote(setting_text(*example))}"
        said += f"; write one as in {typed if setting.where == COMMAND_LINE else literal(example[1])}"
    if setting.where == COMMAND_LINE:
        return f"{COMMAND_LINE} {key}: {part}{said}"
    return f"{setting.where}: {part and f'{part}of '}{key} {said}"


def _inconsistent(
    table: str,
    message: str,
    cause: object,
    settings: Settings,
    changes: Settings,
    schema: type[BaseModel],
) -> str:
    """One line on values that are valid by themselves: the place, and the message of the schema.

    The message begins with a key, perhaps its value, and the problem. Its remedy comes after a semicolon.
    ``cause`` is the exception of a validator, if there is one.
    """
    merged, culprit = settings | changes, _culprit(settings, changes, schema)
    problem, _, own = message.partition("; ")
    for_key = ""
    if isinstance(cause, OwnRemedyError):
        for_key = cause.for_key
    elif culprit and (usual := _remedy(table, merged, changes, schema)):
        own = _told(usual, changes[culprit].where)
    named = re.match(r"([\w.]+)(?: = (.*?):|:|) (.+)", problem, re.DOTALL)
    name = named[1] if named and "." in named[1] else f"{table}.{named[1]}" if named else ""
    own = for_key or own if name == culprit else own
    remedy = own and f"; {own}"
    if not culprit or changes[culprit].where != COMMAND_LINE:
        place = changes[culprit].where if culprit else _blame(table, message, merged)
    elif named and name == culprit:
        value = f", got {named[2]}" if named[2] else ""
        return f"{COMMAND_LINE} {culprit}: {named[3]}{value}{remedy}"
    else:
        place = f"{COMMAND_LINE} {culprit}"
    prefix = f"[{table}] " if table and not problem.startswith(f"{table}.") else ""
    return f"{place}: {prefix}{problem}{remedy}"


def holds_without(key: str, settings: Settings, changes: Settings, schema: type[BaseModel]) -> bool:
    """True if settings and changes make a valid config without the change of ``key``."""
    return _holds(settings | {name: other for name, other in changes.items() if name != key}, schema)


def _holds(settings: Settings, schema: type[BaseModel]) -> bool:
    """True if the settings make a valid config."""
    try:
        schema.model_validate(nested(settings, schema))
    except ValidationError:
        return False
    return True


def _culprit(settings: Settings, changes: Settings, schema: type[BaseModel]) -> str:
    """The first changed key without which the config is valid. Empty if there is none."""
    return next((key for key in changes if holds_without(key, settings, changes, schema)), "")


def _remedy(table: str, merged: Settings, changes: Settings, schema: type[BaseModel]) -> dict[str, object]:
    """Defaults of the fewest inherited keys that make a config with ``changes`` valid, if any.

    Keys of ``table`` come first. Keys that decide about others stay as they are.
    """
    keys, fixed = known_keys(schema), changes.keys() | deciding_keys(schema)
    inherited = {key: old.value for key, old in merged.items() if key not in fixed}
    defaults = {key: keys[key].get_default() for key in inherited if not keys[key].is_required()}
    defaults |= {key: value for key, value in off_values(schema).items() if key in inherited}
    for start in (table, ""):
        usual = {
            key: Setting(value, DEFAULT)
            for key, value in defaults.items()
            if key.startswith(start and f"{start}.") and value != inherited[key]
        }
        if not _holds(merged | usual, schema):
            continue
        for key in [*usual]:
            if holds_without(key, merged, usual, schema):
                del usual[key]
        return {key: default.value for key, default in usual.items()}
    return {}


def _told(values: Mapping[str, object], place: str) -> str:
    """The remedy that sets values: options for a mistake of the command line, else lines of a file."""
    if place.startswith(COMMAND_LINE):
        options = [f"{COMMAND_LINE} {shlex.quote(setting_text(*item))}" for item in values.items()]
        return " ".join(["add", *options])
    return "also set " + ", ".join(f"{key} = {literal(value)}" for key, value in values.items())


def _blame(table: str, message: str, settings: Settings) -> str:
    """The place of the first key that a message about a whole table names, or else of one in the table."""
    words = [word.strip(".") for word in re.findall(r"[\w.]+", message)]
    named = [key for word in words for key in (word, f"{table}.{word}") if key in settings]
    keys = [*named, *(key for key in settings if key.startswith(table and f"{table}."))]
    return next((where for key in keys if (where := settings[key].where) != DEFAULT), DEFAULT)


def _about(field: FieldInfo) -> str:
    return (field.description or "").casefold()


def _choices(annotation: object) -> list[str]:
    """The strings of a Literal, or of a union with one."""
    if get_origin(annotation) is Literal:
        return [choice for choice in get_args(annotation) if isinstance(choice, str)]
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def shortened(value: object) -> str:
    """A value for a message, in at most 60 characters."""
    if isinstance(value, Mapping):
        return "a table"
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    except ValueError:  # more digits than Python prints
        return "a number of more than 4,300 digits"
    return text if len(text) <= 60 else text[:57] + "..."
