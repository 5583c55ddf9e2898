"""Presets, the configs that come with Highrank: names, files and recorded sizes.

A file STEM.toml holds a family of presets. Its table ``[presets.NAME]`` is the preset STEM_NAME, its table
``[bases.NAME]`` is _STEM_NAME, and its keys above all tables are _STEM. Its tables extend _STEM unless they
name another config. Names that begin with _ are bases: other configs extend them, and nothing lists them. A
file without such tables is one config with the name STEM.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm.config.suggest import did_you_mean
from lm.config.tomlfile import Lines, read_toml
from lm.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel

SIZES = "parameters.json"
TABLES = {"bases": "_", "presets": ""}  # tables of a family's file, and the prefix of their configs' names
PACKAGES = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, eq=False)
class Preset:
    """A preset or base: its keys and their lines in the file."""

    name: str
    path: Path
    keys: Mapping[str, Any]
    lines: Lines


def preset_names(family: str) -> list[str]:
    """The presets of ``dialog`` or ``lm``, sorted and without bases."""
    return sorted(name for name in presets_and_bases(family) if not name.startswith("_"))


@cache
def presets_and_bases(family: str) -> Mapping[str, Preset]:
    """Every preset and base of ``dialog`` or ``lm`` by name. Raises ConfigError for a damaged file."""
    files = sorted(preset_folder(family).glob("*.toml"))
    return {preset.name: preset for path in files for preset in read_presets(path)}


def read_presets(path: Path) -> Iterator[Preset]:
    """The presets and bases of a file; by default a table extends the file's own base."""
    data, lines = read_toml(path)
    own = {name: value for name, value in data.items() if name not in TABLES}
    plain, base = len(own) == len(data), f"_{path.stem.lstrip('_')}"
    if own:
        yield Preset(path.stem if plain else base, path, own, lines)
    for kind, start in TABLES.items():
        for name, keys in data.get(kind, {}).items():
            here = {place[2:]: line for place, line in lines.items() if place[:2] == (kind, name)}
            parent = {"extends": base} if own else {}
            here[("extends",)] = here.get(("extends",), here[()])
            yield Preset(f"{start}{base[1:]}_{name}", path, parent | keys, here)


def space_paths(family: str) -> list[Path]:
    """The search spaces of ``dialog`` or ``lm``, sorted by name: in the folder ``spaces`` of its presets."""
    return sorted((preset_folder(family) / "spaces").glob("*.toml"))


def preset_folder(family: str) -> Path:
    """``<family>/configs`` where installed from a wheel, ``configs/<family>`` in a checkout."""
    installed = PACKAGES / family / "configs"
    return installed if installed.is_dir() else PACKAGES / "configs" / family


def recorded_parameters(family: str) -> dict[str, dict[str, str | int]]:
    """Parameters by preset and fingerprints of their sizes, from ``scripts/docs.py``."""
    path = preset_folder(family) / SIZES
    found: dict[str, dict[str, str | int]] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found


def sizes_of(config: "BaseModel") -> str:
    """A fingerprint of all settings that may affect the number of parameters."""
    sections = ("model", "cell", "transformer", "encoder", "decoder", "head")
    sized: dict[str, Any] = dict.fromkeys(sections, True) | {"data": {"train", "vocab_size", "tokenizer"}}
    speed = {"head": {"products", "skip_below"}}
    values = config.model_dump(mode="json", include=sized, exclude=speed)
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def preset_of_path(path: Path, family: str) -> Preset | None:
    """The preset or base NAME of a path to NAME.toml in the folder of presets.

    Older configs extend such paths, because each preset had its own file. Raises ConfigError for a file of
    several configs.
    """
    known = presets_and_bases(family)
    family_of_presets = [name for name, preset in known.items() if preset.path.name == path.name]
    if path.suffix != ".toml" or not (path.stem in known or family_of_presets):
        return None
    with suppress(OSError, ValueError):  # not a path
        if path.parent.resolve() == preset_folder(family):
            if path.stem in known:
                return known[path.stem]
            raise ConfigError(f"{path}: holds several configs; name one of {', '.join(family_of_presets)}")
    return None


def find_space(source: str, family: str) -> Path:
    """The file for ``--space``: a search space by its exact name, or a path.

    Raises ConfigError, with the nearest space, if there is no such file.
    """
    spaces = {path.stem: path for path in space_paths(family)}
    if source in spaces:
        return short_path(spaces[source])
    path = Path(source)
    if os.path.isfile(path):
        return path
    hint = did_you_mean(path.stem, spaces) or f"; the spaces of `{family}` are {', '.join(spaces)}"
    raise ConfigError(f"--space {source}: no such space or file{hint}")


def short_path(path: Path) -> Path:
    """The path relative to the working folder if that is shorter, for errors and provenance."""
    folder = Path.cwd()
    return path.relative_to(folder) if path.is_relative_to(folder) else path
