"""Files of a run that an export carries, and the run that an import makes of them."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import nn

from lm.config.load import Resolved, save_config
from lm.disk.new_folder import NewFolder
from lm.disk.storage import MAX_JSON, read_file, write_new
from lm.engine.state import model_tensors
from lm.huggingface.folder import require_new_run
from lm.runs.checkpoint import CheckpointStore
from lm.runs.inputs import DATA, FILES, RunFile
from lm.text.vocabulary import Codec


def own_files(run: Path) -> dict[str, bytes]:
    """Config and codec of a run by file name."""
    return {
        name: read_file(run / name, limit=MAX_JSON)
        for name in FILES
        if name != DATA and os.path.lexists(run / name)
    }


def write_run(
    run: Path,
    resolved: Resolved[Any],
    codec: Codec,
    model: nn.Module,
    files: Mapping[RunFile, bytes] = MappingProxyType({}),
) -> None:
    """Write a run with the one checkpoint ``step-0``, whole or not at all. StorageError if it exists."""
    place = NewFolder(run, "import")
    with place.alone():
        require_new_run(run)
        with place.building() as folder:
            save_config(resolved, folder / "config.json")
            codec.save(folder)
            for name, content in files.items():
                write_new(folder / name, content)
            store = CheckpointStore.of(folder)
            store.commit(0, {"model": model_tensors(model)}, {}, {})
            store.point("best", 0)
