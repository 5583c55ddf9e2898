"""Folders of pretrained models: their small files, read as data. Code of a folder is never run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm.disk.storage import parse_json, read_file
from lm.errors import StorageError

MODEL_CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
_LIMIT = 1 << 24  # bytes of a config


def require_folder(folder: Path) -> None:
    """Raise StorageError unless the folder exists."""
    if not folder.is_dir():
        raise StorageError(f"{folder}: no such folder; download the model there, or correct hf:FOLDER")


def read_settings(path: Path) -> tuple[Mapping[str, Any], bytes]:
    """Values and bytes of a config file.

    StorageError if it is missing, no JSON object, or names code that would have to be run.
    """
    content = read_file(path, limit=_LIMIT)
    values = parse_json(content, path)
    if not isinstance(values, dict):
        raise StorageError(f"{path}: no JSON object; download the file again")
    if values.get("auto_map"):
        raise StorageError(
            f"{path}: auto_map names code of the folder, which is never run; choose a model of a kind that"
            " transformers itself has"
        )
    return values, content
