"""Numbers of parameters of all presets, kept so that ``presets`` need not build the models."""

import json
from pathlib import Path

from dialog.config import DialogConfig
from dialog.describe import describe as describe_dialog
from lm.config.load import load_config
from lm.config.presets import SIZES, preset_folder, preset_names, sizes_of
from lm.language.config import LmConfig
from lm.language.describe import describe


def preset_sizes() -> dict[Path, str]:
    """The text of the file of each family."""
    return {preset_folder(family) / SIZES: _text(family) for family in ("dialog", "lm")}


def _text(family: str) -> str:
    entries = {name: _parameters(family, name) for name in preset_names(family)}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
    return f"{{\n{lines}\n}}\n"


def _parameters(family: str, name: str) -> dict[str, str | int]:
    """Number of parameters of a preset, and the fingerprint of its sizes."""
    if family == "dialog":
        dialog = load_config(name, DialogConfig, family=family).config
        return {"of": sizes_of(dialog), "parameters": describe_dialog(dialog)["parameters"]}
    config = load_config(name, LmConfig, family=family).config
    return {"of": sizes_of(config), "parameters": describe(config)["parameters"]}
