"""Entries of the files of results, results/*.json.

A file of results has ``about`` and ``entries``. An entry has a label, the config and its settings, the
command, seeds, machine, version of torch, date, and numbers. That of a training has the hash of its config,
and one of scripts/train_table.py the nats of the units of the text.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm.disk.storage import read_json


def entries_of(folder: Path, name: str) -> list[Any]:
    """The entries of a file of results. StorageError if the file cannot be read."""
    content: Any = read_json(folder / f"{name}.json")
    found: list[Any] = content["entries"]
    return found


def head_of(entry: Mapping[str, Any]) -> str:
    """The end of the preset's name, after that of its family of small presets."""
    name: str = entry["config"].partition("_small_")[2]
    return name
