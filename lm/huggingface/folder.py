"""Exported folders: files of transformers, and in ``highrank/`` what the way back needs.

::

    OUT/config.json, generation_config.json   sizes and special tokens, as transformers reads them
    OUT/model.safetensors                     all weights, tied ones once
    OUT/tokenizer.json, tokenizer_config.json the codec as a fast tokenizer
    OUT/README.md                             the model card
    OUT/highrank/                             config and codec of the run
    OUT/highrank/manifest.json                SHA-256 of all these files
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lm.config.places import programs, runs_in, wrong_kind
from lm.disk.jsonfile import canonical_json, read_json
from lm.disk.new_folder import NewFolder, strangers
from lm.disk.storage import (
    make_folder,
    read_file,
    require_place,
    require_space,
    sha256_file,
    storage_errors,
    write_new,
    write_parts,
)
from lm.disk.tensors import tensor_file
from lm.errors import StorageError, visible
from lm.huggingface.source import MODEL_CONFIG

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

OWN_FOLDER = "highrank"  # the folder of what the way back needs
WEIGHTS = "model.safetensors"
CARD = "README.md"
_LIST = f"{OWN_FOLDER}/manifest.json"
_LIMIT = 1 << 24  # bytes of a config
_SLACK = 1 << 24  # bytes of a folder besides its weights


def require_exportable(out: Path) -> None:
    """Raise StorageError unless a folder is writable and absent, empty, or holds only an unchanged export."""
    require_place(out)
    with storage_errors(out):
        if not os.path.lexists(out) or (out.is_dir() and not os.listdir(out)):
            return
    written = _written(out)
    for path in strangers(out, (_LIST, *written)):
        raise StorageError(
            f"{visible(path)}: not written by `export` and would be lost; move it elsewhere, or choose"
            " another DIR"
        )
    for name, sha256 in written.items():
        path = out / name
        if os.path.lexists(path) and sha256_file(path) != sha256:
            raise StorageError(
                f"{visible(path)}: changed since the export and would be lost; choose another DIR, or"
                " remove the folder"
            )


def _written(out: Path) -> dict[str, str]:
    """SHA-256 of the files that an export wrote, by path in the folder. StorageError for a foreign folder."""
    try:
        match read_json(out / _LIST, limit=_LIMIT):
            case {"files": dict(files)} if all(isinstance(sha256, str) for sha256 in files.values()):
                return files
    except StorageError:
        pass
    raise StorageError(
        f"{visible(out)}: exists and was not written by `export`; choose another DIR, or remove it"
    )


def write_export(
    out: Path,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerFast",
    card: str,
    own: Mapping[str, bytes],
) -> None:
    """Write a folder, whole or not at all, instead of an unchanged earlier export. Raises StorageError."""
    weights = unique_tensors(model)
    require_space(out.parent, _SLACK + sum(tensor.nbytes for tensor in weights.values()))
    place = NewFolder(out, "export")
    with place.exclusive():
        require_exportable(out)
        with place.building() as folder:
            make_folder(folder / OWN_FOLDER)
            files = {}
            for name, content in (
                *((f"{OWN_FOLDER}/{name}", content) for name, content in own.items()),
                *_files(model, tokenizer, card),
            ):
                files[name] = write_new(folder / name, content)
            files[WEIGHTS] = write_parts(folder / WEIGHTS, *tensor_file(weights, {"format": "pt"}))
            write_new(folder / _LIST, canonical_json({"files": files}) + b"\n")


def _files(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast", card: str
) -> Iterable[tuple[str, bytes]]:
    model.config.architectures = [type(model).__name__]
    yield "config.json", _json(model.config.to_json_string(use_diff=False))
    if model.generation_config is not None:
        yield "generation_config.json", _json(model.generation_config.to_json_string())
    yield "tokenizer.json", _json(tokenizer.backend_tokenizer.to_str())
    marks = ("bos_token", "eos_token", "unk_token", "pad_token")  # None, too
    named = (*marks, "padding_side", "clean_up_tokenization_spaces")
    settings = dict(tokenizer.special_tokens_map) | {name: getattr(tokenizer, name) for name in named}
    if tokenizer.chat_template is not None:
        settings["chat_template"] = tokenizer.chat_template
    yield (
        "tokenizer_config.json",
        _json(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | settings)),
    )
    yield CARD, card.encode()


def _json(text: str) -> bytes:
    return (json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n").encode()


def unique_tensors(model: "PreTrainedModel") -> "dict[str, Tensor]":
    """Parameters and buffers by name; of tied ones only the first, as transformers stores them."""
    seen: set[int] = set()
    found: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor.detach()
    return found


def whole_tensors(model: "nn.Module", stored: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Stored weights under the names of a model's state_dict, tied ones under each of their names."""
    named = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
    own = model.state_dict(keep_vars=True)
    firsts: dict[int, Tensor] = {id(own[name]): tensor for name, tensor in named.items() if name in own}
    return named | {name: firsts[id(tensor)] for name, tensor in own.items() if id(tensor) in firsts}


def _require_whole(folder: Path) -> None:
    """Raise StorageError unless all files except the card exist, and those of the run itself are unchanged.

    Transformers may have written other ones over its own, but cannot open the folder without them.
    """
    for name, sha256 in _written(folder).items():
        path, own = folder / name, name.startswith(f"{OWN_FOLDER}/")
        if name != CARD and not (path.is_file() and (not own or sha256_file(path) == sha256)):
            raise StorageError(f"{visible(path)}: missing or damaged; export the run again")


def require_export(folder: Path, command: str) -> None:
    """Raise StorageError unless a folder is a whole export of the ``command`` line. Weights are not read."""
    if not folder.is_dir():
        raise StorageError(f"{folder}: no such folder; check the path")
    if not (folder / OWN_FOLDER).is_dir():
        if found := runs_in(folder) and wrong_kind(folder, command, "an exported model"):
            raise StorageError(f"{folder}: {found}")
        if (folder / MODEL_CONFIG).is_file():
            raise StorageError(
                f'{folder}: a pretrained model, which needs no import; use it by model.trunk = "hf:{folder}"'
            )
        told = f"no folder of `{command} export`, which has {OWN_FOLDER}/; name another folder"
        raise StorageError(f"{folder}: {told}")
    _require_whole(folder)
    path = folder / MODEL_CONFIG
    config = read_json(path, limit=_LIMIT)
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in (f"highrank_{command}", f"highrank_{command}_stream"):
        _, other = programs(command)
        raise StorageError(f"{path}: not of a model of `{command}`; use `{other}`")


def require_new_run(run: Path) -> None:
    """Raise StorageError if a run exists."""
    if os.path.lexists(run):
        raise StorageError(f"{run}: exists; choose another --run, or remove it")


def read_export(folder: Path, command: str) -> tuple[Path, "dict[str, Tensor]"]:
    """The folder with config and codec of the run, and all stored weights by name.

    StorageError if it is no exported folder of the ``command`` line, or a file is missing or damaged. The
    weights may differ from the exported ones, since ``save_pretrained`` may have written others over them.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    require_export(folder, command)
    path = folder / WEIGHTS
    with storage_errors(path):
        size = os.path.getsize(path)
    try:
        return folder / OWN_FOLDER, load(read_file(path, limit=size))
    except (SafetensorError, KeyError, ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise StorageError(f"{path}: not readable as safetensors; export the run again") from error
