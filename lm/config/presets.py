"""The configs that come with Highrank: where they are, what they are called, how large their models are."""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from lm.config.suggest import did_you_mean
from lm.errors import ConfigError

SIZES = "parameters.json"
PACKAGES = Path(__file__).resolve().parent.parent.parent


def preset_paths(family: str) -> list[Path]:
    """The presets of ``dialog`` or ``lm``, sorted by name; files named ``_*.toml`` are bases, not presets.

    Installed from a wheel they are in ``<family>/configs``, in a checkout in ``configs/<family>``.
    """
    return sorted(path for path in _folder(family).glob("*.toml") if not path.name.startswith("_"))


def space_paths(family: str) -> list[Path]:
    """The search spaces of ``dialog`` or ``lm``, sorted by name: in the folder ``spaces`` of its presets."""
    return sorted((_folder(family) / "spaces").glob("*.toml"))


def _folder(family: str) -> Path:
    installed = PACKAGES / family / "configs"
    return installed if installed.is_dir() else PACKAGES / "configs" / family


def recorded_parameters(family: str) -> dict[str, dict[str, str | int]]:
    """What ``scripts/preset_sizes.py`` has written: parameters by preset, and the sizes that they are of."""
    path = _folder(family) / SIZES
    found: dict[str, dict[str, str | int]] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found


def sizes_of(config: BaseModel) -> str:
    """A fingerprint of all that the number of parameters may depend on."""
    vocabulary = {"train", "vocab_size", "tokenizer"}
    sized: dict[str, Any] = dict.fromkeys(("model", "cell", "encoder", "decoder", "head"), True)
    sized["data"] = vocabulary
    speed = {"head": {"products", "skip_below"}}
    values = config.model_dump(mode="json", include=sized, exclude=speed)
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def find_config(source: str, family: str) -> Path:
    """The file that ``source`` means: a preset by its exact name, or a path.

    Raises ConfigError where there is no such file, naming the nearest preset.
    """
    presets = {path.stem: path for path in preset_paths(family)}
    if source in presets:
        return _short(presets[source])
    path = Path(source)
    if path.is_dir():
        raise ConfigError(
            f"{source}: a folder; give a preset (`{family} presets` lists them) or a .toml file"
        )
    if path.exists():
        return path
    other = {"lm": "dialog", "dialog": "lm"}.get(family, family)
    if path.stem in {preset.stem for preset in preset_paths(other)}:
        raise ConfigError(f"{source}: a preset of `{other}`, not of `{family}`; use `{other}`")
    hint = did_you_mean(path.stem, presets) or f"; `{family} presets` lists the presets"
    looks_like_path = path.suffix == ".toml" or len(path.parts) > 1
    raise ConfigError(f"{source}: no such {'file' if looks_like_path else 'preset or file'}{hint}")


def find_space(source: str, family: str) -> Path:
    """The file that ``--space`` means: a search space by its exact name, or a path.

    Raises ConfigError where there is no such file, naming the nearest space.
    """
    spaces = {path.stem: path for path in space_paths(family)}
    if source in spaces:
        return _short(spaces[source])
    path = Path(source)
    if path.is_file():
        return path
    hint = did_you_mean(path.stem, spaces) or f"; the spaces of `{family}` are {', '.join(spaces)}"
    raise ConfigError(f"--space {source}: no such space or file{hint}")


def _short(path: Path) -> Path:
    """Relative to the working folder where that is shorter to read: errors and provenance name it."""
    folder = Path.cwd()
    return path.relative_to(folder) if path.is_relative_to(folder) else path
