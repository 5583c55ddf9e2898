"""Loader of TOML files into frozen, strict, typed configs that record the origin of every value.

A config file sets keys of the sections of its schema. It may inherit from another file with
``extends = "parent.toml"``, relative to itself. ``--set section.key=value`` comes last. TOML has no null, so
the string ``none`` leaves an optional key empty. Unknown keys and ill-typed values are errors with file,
line, key and the nearest valid name. The loader imports no heavy library.
"""

import json
import os
import tomllib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from lm.config.mistakes import holds_without, invalid, shortened, unknown
from lm.config.places import find_config, not_a_run, program_of_preset, read_config_file
from lm.config.presets import Preset, preset_of_path, presets_and_bases, short_path
from lm.config.section import MAX_TEXT, Section, known_keys, known_tables
from lm.config.settings import COMMAND_LINE, DEFAULT, Setting, Settings, keys_of, nested
from lm.config.suggest import did_you_mean
from lm.config.tomlfile import MAX_TOML, Lines, as_float
from lm.disk.jsonfile import JSON, read_json, sealed, write_json
from lm.disk.storage import storage_errors
from lm.errors import ConfigError, StorageError

C = TypeVar("C", bound=BaseModel)


@dataclass(frozen=True)
class Resolved(Generic[C]):
    """A config and, for each dotted key, ``default``, ``FILE:LINE`` or ``--set``."""

    config: C
    provenance: dict[str, str]


def load_config(source: str, schema: type[C], *, family: str, overrides: Sequence[str] = ()) -> Resolved[C]:
    """Read the file or preset ``source`` of ``family``, its parents, and ``key=value`` overrides.

    Raises ConfigError, one line, for a missing file, bad TOML, an unknown key or an invalid value, and for an
    override of a key without effect.
    """
    inherited, own = _file_settings(find_config(source, family), schema, ())
    changes = _override_settings(overrides, schema)
    if "extends" in changes:
        raise ConfigError(f"{COMMAND_LINE} extends: only a file can extend another; name that file instead")
    if not changes:
        return _build(schema, inherited, own)
    resolved = _build(schema, inherited | own, changes)
    _require_owned(resolved.config, inherited | own, changes)
    return resolved


def _require_owned(config: BaseModel, settings: Settings, changes: Settings) -> None:
    """Raise ConfigError for a change of a key that has no effect in the config.

    A default that makes the config valid is allowed, because it undoes one of ``settings``.
    """
    for key in changes:
        reason = _without_effect(config, key)
        if reason and holds_without(key, settings, changes, type(config)):
            raise ConfigError(f"{COMMAND_LINE} {key}: {reason}; leave it out")


def _without_effect(config: BaseModel, key: str) -> str:
    """The reason why a key of a config has no effect, by the owners of its table. Empty if it has one."""
    table, _, name = key.rpartition(".")
    section = getattr(config, table, None)
    if not isinstance(config, Section) or not isinstance(section, Section):
        return ""
    if reason := config.idle().get(table):
        return f"has no effect with {reason}"
    owner = section.lacking(name)
    return owner and f"belongs to {owner}"


def require_effect(config: BaseModel, overrides: Sequence[str], open_keys: Collection[str] = ()) -> None:
    """Raise ConfigError if a ``section.key=value`` override of a config sets a key that nothing reads.

    ``open_keys`` as in :func:`require_read`.
    """
    for key in keys_of(overrides):
        require_read(config, key, f"{COMMAND_LINE} ", open_keys)


def require_read(config: BaseModel, key: str, where: str, open_keys: Collection[str] = ()) -> None:
    """Raise ConfigError with ``where`` if nothing reads a key of a config.

    The keys ``open_keys`` may get any value, so that those that depend on them may be read.
    """
    table, _, name = key.rpartition(".")
    section = getattr(config, table, None)
    if not isinstance(section, Section):
        return
    for decider in section.unread_with(name):
        if (full := f"{table}.{decider}") not in open_keys:
            raise ConfigError(
                f"{where}{key}: has no effect with {_values_text(config, [full])}; leave it out, or choose"
                f" {section.readers[decider][name].name}"
            )
    deciders = config.unread().get(key, ()) if isinstance(config, Section) else ()
    if deciders and not set(deciders) & set(open_keys):
        raise ConfigError(f"{where}{key}: has no effect with {_values_text(config, deciders)}; leave it out")


def _values_text(config: BaseModel, keys: Sequence[str]) -> str:
    """Keys of a config and their values, as the command line takes them."""
    tables = [key.split(".") for key in keys]
    return " and ".join(
        f"{table}.{name} = {_as_typed(getattr(getattr(config, table), name))}" for table, name in tables
    )


def _as_typed(value: object) -> str:
    """A value as the command line takes it."""
    return json.dumps(value) if isinstance(value, bool | tuple) else str(value)


def override(
    resolved: Resolved[C],
    overrides: Sequence[str],
    schema: type[C],
    *,
    sections: Collection[str],
    place: str = COMMAND_LINE,
) -> Resolved[C]:
    """Change keys of a loaded config, only in the named sections.

    ``place`` names the origin of the overrides in messages. Raises ConfigError like ``load_config``, and for
    keys of other sections.
    """
    changes = _override_settings(overrides, schema, place, sections)
    for key in changes:
        if key.split(".")[0] not in sections:
            allowed = ", ".join(f"{section}.*" for section in sections)
            raise ConfigError(
                f"{place} {key}: fixed when the run was trained; only {allowed} can be set here"
            )
    return with_settings(resolved, changes, schema)


def with_settings(resolved: Resolved[C], changes: Settings, schema: type[C]) -> Resolved[C]:
    """A loaded config with other values. ConfigError names the place of the first bad one."""
    values = _flatten(resolved.config.model_dump(), {}, schema, Path())
    settings = {
        key: Setting(old.value, resolved.provenance.get(key, old.where)) for key, old in values.items()
    }
    merged = _build(schema, settings, changes)
    return Resolved(merged.config, resolved.provenance | {key: new.where for key, new in changes.items()})


def require_key(
    key: str, schema: type[BaseModel], where: str, sections: Collection[str] | None = None
) -> FieldInfo:
    """The field of a dotted key. ConfigError if there is none, with the nearest name in the ``sections``."""
    keys = known_keys(schema)
    if key not in keys:
        raise ConfigError(f"{where}: {unknown(key, schema, is_table=False, sections=sections)}")
    return keys[key]


def save_config(resolved: Resolved[C], path: Path) -> None:
    """Write ``config.json``: family, values, the origin of each, and a SHA-256. Raises StorageError."""
    saved: dict[str, JSON] = {
        "family": family_of(type(resolved.config)),
        "config": resolved.config.model_dump(mode="json"),
        "provenance": resolved.provenance,
    }
    write_json(path, sealed(saved))


def read_config(path: Path, schema: type[C]) -> Resolved[C]:
    """Read a file of ``save_config``.

    Raises StorageError for a missing or foreign file, ConfigError for keys or values that this version does
    not know.
    """
    with storage_errors(path):
        there = path.is_file()
    if not there:
        raise not_a_run(path.parent, family_of(schema))
    saved = read_json(path, limit=MAX_TOML)
    require_family(path, saved, family_of(schema))
    match saved:
        case {"config": dict(values), "provenance": dict(provenance)}:
            settings = _flatten(values, {}, schema, path)
            resolved = _build(schema, settings)
            known = {key: str(where) for key, where in provenance.items() if key in resolved.provenance}
            return Resolved(resolved.config, resolved.provenance | known)
    raise StorageError(f"{path}: not the config of a run; it has no config and provenance")


def family_of(schema: type[BaseModel]) -> str:
    """The command line of a config, ``dialog`` or ``lm``. Empty for a config of neither."""
    return str(getattr(schema, "family", ""))


def require_family(path: Path, saved: object, family: str) -> None:
    """Raise StorageError if the config.json is of a run of another family, or of a model of transformers."""
    if not isinstance(saved, dict) or not family:
        return
    if "model_type" in saved:
        raise not_a_run(path.parent, family)
    if (found := saved.get("family", "dialog")) != family:
        raise StorageError(
            f"{path.parent}: a run of `{found}`, not of `{family}`; only commands of `{found}` open it"
        )


def _parent(path: Path, extends: Setting, schema: type[BaseModel]) -> Path | Preset:
    """The parent config of a file: a path relative to it, or else a preset or base by its name."""
    name, family = str(extends.value), family_of(schema)
    parent, known = path.parent / name, presets_and_bases(family)
    with suppress(OSError, ValueError):  # too long for a name, or not a name
        if preset := preset_of_path(parent, family):
            return preset
        if parent.exists() and not parent.is_dir():
            return parent
    if name in known:
        return known[name]
    there = "no such file or preset" + ("" if str(parent) == name else f" {shortened(str(parent))}")
    if os.path.isdir(parent):
        there = "a folder, not a config"
    elif program := program_of_preset(name):
        there = f"a preset of `{program}`, not of `{family}`"
    hint = did_you_mean(name, known) or f"; `{family} presets` lists the presets"
    raise ConfigError(f"{extends.where}: extends {shortened(name)}: {there}{hint}")


def _file_settings(
    source: Path | Preset, schema: type[BaseModel], descendants: tuple[Path | str, ...]
) -> tuple[Settings, Settings]:
    """The settings of a config's parents, and its own; ``descendants`` are the configs that extend it."""
    if isinstance(source, Preset):
        path = short_path(source.path)
        settings = _preset_settings(source, path, schema)
    else:
        path = source
        settings = _flatten(*read_config_file(path, family_of(schema)), schema, path)
    extends = settings.get("extends")
    if extends is None or not isinstance(extends.value, str) or not extends.value:
        return Settings(), settings
    parent, lineage = _parent(path, extends, schema), (*descendants, _identity(source))
    if _identity(parent) in lineage:
        raise ConfigError(f"{extends.where}: extends {extends.value!r} forms a cycle; remove one extends")
    inherited, theirs = _file_settings(parent, schema, lineage)
    return inherited | theirs, settings


@cache
def _preset_settings(preset: Preset, path: Path, schema: type[BaseModel]) -> Settings:
    """The settings of a preset without those of its parents; ``path`` is its file for messages."""
    return _flatten(preset.keys, preset.lines, schema, path)


def _identity(source: Path | Preset) -> Path | str:
    """A config's name in a chain of ``extends``."""
    return source.name if isinstance(source, Preset) else source.resolve()


def _flatten(
    data: Mapping[str, object], lines: Lines, schema: type[BaseModel], path: Path, table: tuple[str, ...] = ()
) -> Settings:
    """The tables of a document by dotted key. Unknown names and misplaced tables are errors."""
    keys, tables, settings = known_keys(schema), known_tables(schema), Settings()
    for name, value in data.items():
        here = (*table, name)
        dotted = ".".join(here) if "." not in name else json.dumps(name)
        where = f"{path}:{lines[here]}" if here in lines else str(path)
        if dotted in keys:
            settings[dotted] = Setting(value, where)
        elif dotted not in tables:
            raise ConfigError(f"{where}: {unknown(dotted, schema, is_table=isinstance(value, Mapping))}")
        elif isinstance(value, Mapping):
            settings |= _flatten(value, lines, schema, path, here)
        else:
            raise ConfigError(f"{where}: {dotted} is a table: write one [{dotted}] and its keys below it")
    return settings


def _override_settings(
    overrides: Sequence[str],
    schema: type[BaseModel],
    place: str = COMMAND_LINE,
    sections: Collection[str] | None = None,
) -> Settings:
    """Parse ``section.key=value`` texts; a value is TOML, or a string if that fails or the key needs one."""
    settings = Settings()
    for text in overrides:
        key, equals, value = (part.strip() for part in text.partition("="))
        if len(text) > MAX_TEXT:
            raise ConfigError(
                f"{place} {text[:40]}…: longer than {MAX_TEXT:,} characters; write it in a file"
            )
        if not equals:
            raise ConfigError(f"{place} {text}: give a key and a value, as in {place} KEY=VALUE")
        field = require_key(key, schema, place, sections)
        settings[key] = Setting(_value(value, field), place)
    return settings


def _value(text: str, field: FieldInfo) -> object:
    try:
        parsed = tomllib.loads(f"value = {text}", parse_float=as_float)
    except (ValueError, RecursionError):  # not TOML, or a number of more digits than Python parses
        return text
    value = parsed["value"]
    wants_text = field.annotation is str and not isinstance(value, str)
    return text if wants_text or len(parsed) > 1 else value


def _build(schema: type[C], settings: Settings, changes: Settings | None = None) -> Resolved[C]:
    """The config of settings with ``changes``, which are at fault if it is valid without one of them."""
    changes = changes or {}
    merged = settings | changes
    try:
        config = schema.model_validate(nested(merged, schema))
    except ValidationError as error:
        raise ConfigError(invalid(error, settings, changes, schema)) from None
    where = {key: merged[key].where if key in merged else DEFAULT for key in known_keys(schema)}
    return Resolved(config, where)
