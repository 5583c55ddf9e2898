"""Configs, runs and corpora by the paths that users give, and hints where one is taken for another."""

import os
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from lm.config.named_data import SPLITS
from lm.config.presets import Preset, preset_names, preset_of_path, presets_and_bases
from lm.config.suggest import did_you_mean
from lm.config.tomlfile import Lines, read_toml
from lm.disk.jsonfile import read_json
from lm.errors import ConfigError, StorageError, visible

DEFAULT_RUNS = Path("runs")  # default folder of runs
_CONFIG, _MANIFEST = "config.json", "manifest.json"  # in runs, and in prepared corpora
_COMMIT = "checkpoints/step-*/manifest.json"  # in runs that have begun


def default_run(config: str) -> Path:
    """The folder of the run that a config makes if none is named."""
    return DEFAULT_RUNS / Path(config).stem


def find_config(source: str, family: str) -> Path | Preset:
    """The preset with the exact name ``source``, or else the file.

    Raises ConfigError, with the nearest preset, if there is neither.
    """
    names = preset_names(family)
    if not source:
        raise ConfigError(f"CONFIG is empty; name a preset (`{family} presets` lists them) or a .toml file")
    if source in names:
        return presets_and_bases(family)[source]
    path = Path(source)
    if preset := preset_of_path(path, family):
        return preset
    _, other = programs(family)
    if path.stem in preset_names(other) and not os.path.exists(path):
        raise ConfigError(f"{source}: a preset of `{other}`, not of `{family}`; use `{other}`")
    if os.path.isdir(path):
        found = wrong_kind(path, family, "a config")
        found = found or f"a folder; give a preset (`{family} presets` lists them) or a .toml file"
        raise ConfigError(f"{source}: {found}")
    if os.path.exists(path):  # those of pathlib raise for a name that is too long
        return path
    hint = did_you_mean(path.stem, names) or f"; `{family} presets` lists the presets"
    looks_like_path = path.suffix == ".toml" or len(path.parts) > 1
    raise ConfigError(f"{source}: no such {'file' if looks_like_path else 'preset or file'}{hint}")


def read_config_file(path: Path, family: str) -> tuple[dict[str, Any], Lines]:
    """The data and lines of a config. ConfigError names what a file without the suffix .toml is instead."""
    try:
        return read_toml(path)
    except ConfigError as error:
        if path.suffix != ".toml" and (found := wrong_kind(path, family, "a config")):
            raise ConfigError(f"{path}: {found}") from error
        raise


def runs_in(folder: Path, depth: int = 3) -> list[Path]:
    """Run folders in a folder, including itself, down to ``depth`` levels, sorted by name.

    An exported model holds the config of its run, and no run.
    """
    if _is_run(folder):
        return [folder]
    if _model_type(folder / _CONFIG):
        return []
    inner: list[Path] = []
    with suppress(OSError):  # a folder that may not be read has no runs to show
        if depth and folder.is_dir():
            inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return [run for path in inner for run in runs_in(path, depth - 1)]


def _is_run(folder: Path) -> bool:
    """True for a config.json of a run, perhaps damaged or lost, and not of another program."""
    with suppress(OSError):
        if (folder / _CONFIG).is_file():
            try:
                saved = read_json(folder / _CONFIG)
            except StorageError:
                return True
            return isinstance(saved, dict) and "config" in saved
        return any(folder.glob(_COMMIT))
    return False


def wrong_kind(path: Path, family: str, wanted: str) -> str:
    """Kind of a path instead of ``wanted``, with the command for it. Empty for unknown kinds.

    Known are presets, runs, folders of runs, prepared corpora, models of transformers, configs and, with a
    ``family``, other files.
    """
    name, folder = shlex.quote(visible(path)), os.path.isdir(path)
    kind = hint = ""
    if folder and (model := _model_type(path / _CONFIG)):
        kind = f"a model of transformers ({visible(model)})"
        hint = f"train on top of it with --set {shlex.quote(f'model.trunk=hf:{visible(path)}')}"
        if exported := re.fullmatch("highrank_(lm|dialog)(_stream)?", model):
            kind, hint = "an exported model", f"make a run of it with `{exported[1]} import {name} --run RUN`"
    elif folder and (runs := runs_in(path)):
        kind, hint = "a run", f"`{family} runs {name}` shows it"
        if runs != [path]:
            kind, hint = "a folder of runs", f"name one of them, such as {visible(runs[0])}"
            if wanted == "a config":
                hint = f"`{family} presets` lists the presets"
    elif folder and (program := prepared_by(path)):
        splits = " ".join(f"--set {shlex.quote(f'data.{split}={visible(path / split)}')}" for split in SPLITS)
        use = f"own_small --data {name}" if program == "dialog" else f"CONFIG {splits}"
        kind = "a prepared corpus" if program == family else f"a corpus of `{program} prepare`"
        hint = f"train on it with `{program} train {use}`"
    elif os.path.isfile(path) and path.suffix == ".toml" and family:
        kind, hint = "a config", f"make a run with `{family} train {name}`"
    elif os.path.isfile(path) and family:
        use = f"train own_small --data {name}" if family == "dialog" else f"prepare {name} --out data/own"
        kind, hint = "a file", f"if it has text to train on, run `{family} {use}`"
    elif program := program_of_preset(str(path), family):
        kind, hint = "a preset", f"`{program} train {name}` makes the run runs/{name}"
        if _is_run(DEFAULT_RUNS / path):
            hint = f"its run is runs/{name}"
    return kind and f"{kind}, not {wanted}; {hint}"


def program_of_preset(name: str, first: str = "") -> str:
    """The program that has a preset of this name, ``first`` if both have. Empty if there is none."""
    return next((one for one in programs(first) if name in preset_names(one)), "")


def programs(first: str) -> tuple[str, str]:
    """Both command lines, the user's own first."""
    return ("lm", "dialog") if first == "lm" else ("dialog", "lm")


def prepared_by(folder: Path) -> str:
    """The program that prepared the corpus in a folder. Empty if there is none."""
    try:
        match read_json(folder / _MANIFEST):
            case {"inputs": _, "outputs": _, **others}:
                return str(others.get("command", "dialog")).partition(" ")[0]
    except StorageError:
        pass
    return ""


def _model_type(config: Path) -> str:
    """The kind of a model in the format of transformers, whose config has the name of a run's. Else empty."""
    try:
        match read_json(config):
            case {"model_type": str(kind)}:
                return kind
    except StorageError:
        pass
    return ""


def not_a_run(path: Path, family: str = "") -> StorageError:
    """The error for a path that is not the folder of a run."""
    if found := wrong_kind(path, family, "a run"):
        return StorageError(f"{path}: {found}")
    if path.is_dir():
        return StorageError(f"{path}: not the folder of a run: it has no {_CONFIG}; name another folder")
    return StorageError(f"{path}: no such run; check the path")
