"""Files of a run that an export carries, and the run that an import makes of them."""

import os
from pathlib import Path
from typing import Any

from torch import nn

from lm.config.load import Resolved, save_config
from lm.disk.filelock import alone
from lm.disk.storage import MAX_JSON, make_folder, publish_folder, read_file, remove_tree
from lm.engine.state import model_tensors
from lm.errors import StorageError, visible
from lm.runs.checkpoint import CheckpointStore
from lm.runs.inputs import CHECKPOINTS, DATA, FILES
from lm.text.vocabulary import Codec


def own_files(run: Path) -> dict[str, bytes]:
    """Config and codec of a run by file name."""
    return {
        name: read_file(run / name, limit=MAX_JSON)
        for name in FILES
        if name != DATA and os.path.lexists(run / name)
    }


def write_run(run: Path, resolved: Resolved[Any], codec: Codec, model: nn.Module) -> None:
    """Write a run with the one checkpoint ``step-0``, whole or not at all. StorageError if it exists."""
    final = Path(os.path.abspath(run))
    tmp, lock = (final.with_name(f".{final.name}.{end}") for end in ("tmp", "lock"))
    make_folder(final.parent)
    with alone(lock, f"{visible(run)}: another import is writing it; wait for it"):
        if os.path.lexists(final):
            raise StorageError(f"{run}: exists; choose another --run, or remove it")
        remove_tree(tmp)
        try:
            make_folder(tmp)
            save_config(resolved, tmp / "config.json")
            codec.save(tmp)
            store = CheckpointStore(tmp / CHECKPOINTS)
            store.commit(0, {"model": model_tensors(model)}, {}, {})
            store.point("best", 0)
            publish_folder(tmp, final)
        finally:
            remove_tree(tmp)
