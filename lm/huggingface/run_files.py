"""Files of a run that an export has, and the run that an import makes of them."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel
from torch import nn

from lm.config.load import Resolved, read_config, save_config
from lm.disk.jsonfile import MAX_JSON
from lm.disk.new_folder import NewFolder
from lm.disk.storage import read_file, write_new
from lm.engine.state import all_finite, load_model_tensors, model_tensors
from lm.errors import DivergenceError
from lm.huggingface.folder import read_export, require_new_run, whole_tensors
from lm.huggingface.starting import trunk_file, with_trunk
from lm.runs.checkpoint import CheckpointStore
from lm.runs.inputs import CONFIG, DATA, FILES, TRUNK, RunFile
from lm.text.vocabulary import Codec
from lm.trunks.names import pretrained_path

C = TypeVar("C", bound=BaseModel)


def own_files(run: Path) -> dict[str, bytes]:
    """Config and codec of a run by file name."""
    return {
        name: read_file(run / name, limit=MAX_JSON)
        for name in FILES
        if name != DATA and os.path.lexists(run / name)
    }


def import_model(
    folder: Path, run: Path, command: str, schema: type[C], build: Callable[[C, Codec], nn.Module]
) -> None:
    """Write an exported folder of the ``command`` line as a run, with the same weights bit for bit.

    ``build`` makes the model of a config of this schema. StorageError if the folder is not of the command's
    export, or the run exists. DivergenceError for weights that are not finite.
    """
    own, tensors = read_export(folder, command)
    resolved, codec = read_config(own / CONFIG, schema), Codec.load(own)
    config, files = resolved.config, dict[RunFile, bytes]()
    trunk: Any = config
    if pretrained_path(trunk.model.trunk):
        config = with_trunk(config, own / TRUNK)
        files = trunk_file(config)
    if not all_finite(tensors.values()):
        raise DivergenceError(f"{folder}: its weights are not finite; export another checkpoint")
    model = build(config, codec)
    load_model_tensors(model, whole_tensors(model, tensors))
    write_run(run, resolved, codec, model, files)


def write_run(
    run: Path,
    resolved: Resolved[Any],
    codec: Codec,
    model: nn.Module,
    files: Mapping[RunFile, bytes] = MappingProxyType({}),
) -> None:
    """Write a run with the one checkpoint ``step-0``, whole or not at all. StorageError if it exists."""
    place = NewFolder(run, "import")
    with place.exclusive():
        require_new_run(run)
        with place.building() as folder:
            save_config(resolved, folder / "config.json")
            codec.save(folder)
            for name, content in files.items():
                write_new(folder / name, content)
            CheckpointStore.of(folder).commit(0, {"model": model_tensors(model)}, {}, {})
