"""Config files of dialog models: written, loaded, refused, and names with typing errors."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dialog.config import DialogConfig
from lm.config.load import known_keys, load_config
from lm.errors import ConfigError

KEYS = known_keys(DialogConfig)


def write(folder: Path, text: str, name: str = "x.toml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def load(source: str, *overrides: str) -> DialogConfig:
    return load_config(source, DialogConfig, family="dialog", overrides=overrides).config


def rejection(source: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(source, *overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def mutants(name: str, chance: random.Random) -> Iterator[str]:
    """``name`` with one typing error of each kind."""
    at = chance.randrange(len(name))
    swaps = [i for i in range(len(name) - 1) if name[i] != name[i + 1]]
    if swaps:
        i = chance.choice(swaps)
        yield name[:i] + name[i + 1] + name[i] + name[i + 2 :]
    yield name[:at] + name[at + 1 :]
    yield name[:at] + name[at] + name[at:]
    yield name[:at] + chance.choice("bcdfghjkmqvwxyz") + name[at + 1 :]
    yield chance.choice([name.upper(), name.capitalize()])
    yield name.replace("_", "-") if "_" in name else f"{name}_"
