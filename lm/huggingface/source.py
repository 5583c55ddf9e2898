"""Folders of pretrained models: their small files, read as data. Code of a folder is never run.

The module loads nothing of transformers.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm.config.places import runs_in, wrong_kind
from lm.disk.jsonfile import parse_json
from lm.disk.storage import read_file
from lm.errors import StorageError

MODEL_CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
FORCED = "forced_bos_token_id"  # first token of all responses of an encoder-decoder
_LIMIT = 1 << 24  # bytes of a config


def require_folder(folder: Path) -> None:
    """Raise StorageError unless the folder exists."""
    if not folder.is_dir():
        raise StorageError(f"{folder}: no such folder; download the model there, or correct hf:FOLDER")
    # a model whose config is damaged has weights beside it, a run has them in a folder
    if runs_in(folder) == [folder] and not any(folder.glob("*.safetensors")):
        raise StorageError(f"{folder}: {wrong_kind(folder, 'lm', 'a model of transformers')}")


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


def read_model(folder: Path) -> tuple[Mapping[str, Any], bytes]:
    """:func:`read_settings` of a model, with the forced first token of an encoder-decoder.

    Newer versions of transformers keep that token in the generation config.
    """
    values, content = read_settings(folder / MODEL_CONFIG)
    if not values.get("is_encoder_decoder") or not (folder / GENERATION_CONFIG).is_file():
        return values, content
    forced = read_settings(folder / GENERATION_CONFIG)[0].get(FORCED)
    if forced is None or forced == values.get(FORCED):
        return values, content
    merged = {**values, FORCED: forced}
    return merged, json.dumps(merged).encode()
