"""The folder of a run: one writer at a time, its config, its logs, its checkpoints, and the signals it obeys.

::

    RUN/config.json     the resolved config and where each value came from
    RUN/metrics.jsonl   deterministic records; a resumed run continues it bit for bit
    RUN/timing.jsonl    seconds and tokens a second, which no two runs share
    RUN/checkpoints/    see lm.runs.checkpoint
    RUN/corpus          of `dialog train --data`: the prepared corpus
    RUN/lock            held while a process trains here
"""

import json
import os
import socket
import time
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel

from lm.config.difference import Flat, changed_keys, changes_text, flat, flat_config
from lm.config.load import Resolved, keys_before, require_family, save_config
from lm.disk.filelock import FileLock
from lm.disk.storage import (
    JSON,
    SEAL,
    is_sealed,
    make_folder,
    read_json,
    remove_leftovers,
    require_space,
    storage_errors,
)
from lm.errors import ConfigError, StorageError, visible
from lm.runs.checkpoint import CheckpointStore
from lm.runs.inputs import (
    CHECKPOINTS,
    CONFIG,
    CONFIG_LIMIT,
    LOG,
    changed_config,
    file_hashes,
    recorded,
    require_same_files,
)
from lm.runs.metrics_log import MetricsLog
from lm.stop import StopFlag

__all__ = ["MetricsLog", "Run", "StopFlag"]

LOCK = "lock"
MOMENT = 0.5  # seconds in which a look at the lock, as `runs` takes, has long ended
CORPUS = "corpus"  # a prepared corpus that the run is trained on, made before the run itself


class Run:
    """A run folder that this process may write to; a context manager that also holds the signals."""

    def __init__(self, folder: Path, lock: FileLock, config: BaseModel, free: frozenset[str]) -> None:
        self._lock = lock
        self._config = config
        self._free = free
        self._files: dict[str, JSON] = {}
        self.folder = folder
        self.stop = StopFlag()
        self.checkpoints = CheckpointStore(folder / CHECKPOINTS)
        self.checkpoints.clean()
        self.metrics = MetricsLog(folder / LOG)
        self.timing = MetricsLog(folder / "timing.jsonl")

    @classmethod
    def open(cls, folder: Path, resolved: Resolved[Any], *, resumable_keys: frozenset[str]) -> Self:
        """Take the folder for training, making it where it does not exist.

        A folder trained in before must have the same config but for ``resumable_keys`` (dotted), whose new
        values are saved; a key that it lacks, being older, counts as having its default. Raises ConfigError
        naming every other difference, and StorageError where another process trains there, or the folder is
        not that of a run.
        """
        _refuse_foreign(folder)
        make_folder(folder)
        lock = _take_lock(folder)
        try:
            _settle_config(folder / CONFIG, resolved, resumable_keys)
            return cls(folder, lock, resolved.config, resumable_keys)
        except BaseException:
            lock.release()
            raise

    def record(self) -> dict[str, JSON]:
        """What a commit records of the run as it is now: see :mod:`lm.runs.inputs`. Raises StorageError."""
        config = flat_config(self._config)
        self._files = self._files or file_hashes(self.folder)  # all is there before the first commit
        size, sha256 = self.metrics.offset, self.metrics.sha256()
        free = sorted(key for key in config if key in self._free)
        return {"files": self._files, "config": config, "free": free, "log": {"size": size, "sha256": sha256}}

    def preflight(self, bytes_needed: int) -> None:
        """Raises StorageError, naming both sizes, unless so many bytes are free."""
        require_space(self.folder, bytes_needed)

    def close(self) -> None:
        """Give back signals, logs and the lock; without effect the second time."""
        self.stop.uninstall()
        self.metrics.close()
        self.timing.close()
        self._lock.release()

    def __enter__(self) -> Self:
        self.stop.install()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_leftover(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")


def _refuse_foreign(folder: Path) -> None:
    """A folder with anything in it must have been a run, or killed while it was becoming one."""
    with storage_errors(folder):
        names = os.listdir(folder) if os.path.isdir(folder) else []
    others = sorted(name for name in names if name not in (LOCK, CORPUS) and not _is_leftover(name))
    if CONFIG not in names and others and recorded(folder) is None:
        raise StorageError(
            f"{folder}: holds {others[0]} but no {CONFIG}, so it is not a run; "
            "choose a new or empty folder with --run"
        )


def _take_lock(folder: Path) -> FileLock:
    """The folder's lock, held; the file says by whom."""
    path = folder / LOCK
    lock = FileLock(path)
    if not _acquired(lock):
        raise StorageError(
            f"{folder}: {_holder(path)} is training here; "
            "wait for it to end, or choose another folder with --run"
        )
    try:
        lock.sign(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
    except BaseException:
        lock.release()
        raise
    return lock


def _acquired(lock: FileLock) -> bool:
    """Take a lock; False where another holds it for longer than a moment."""
    until = time.monotonic() + MOMENT
    while not lock.acquire(wait=False):
        if time.monotonic() > until:
            return False
        time.sleep(MOMENT / 50)
    return True


def _holder(path: Path) -> str:
    """Who has signed a lock."""
    try:
        value = read_json(path, limit=1000, follow=False)
    except StorageError:
        value = None
    match value:
        case {"pid": int(pid), "host": str(host)}:
            return f"process {pid} on {visible(host)[:80]}"
    return "another process"


def _settle_config(path: Path, resolved: Resolved[Any], resumable_keys: frozenset[str]) -> None:
    """Save the config the first time; later compare it, and save what may change and what is damaged."""
    remove_leftovers(path.parent)
    if _changed(path, resolved, resumable_keys):
        save_config(resolved, path)


def require_same_config(folder: Path, resolved: Resolved[Any], *, resumable_keys: frozenset[str]) -> None:
    """ConfigError as of :meth:`Run.open`: for a look before data are read, which may fail for that reason.

    StorageError where other files of the run are not as its training left them.
    """
    _changed(folder / CONFIG, resolved, resumable_keys)
    require_same_files(folder)


def _changed(path: Path, resolved: Resolved[Any], resumable_keys: frozenset[str]) -> bool:
    """Whether the saved config is missing, damaged or another; ConfigError where keys differ that may not."""
    was, whole = _saved_config(path, resolved)
    if was is None:
        return True
    now = flat_config(resolved.config)
    before = flat_config(type(resolved.config)()) | was  # keys that came since then had no other value
    for key, decided in keys_before(type(resolved.config)).items():
        if key not in was and now[key] == was.get(decided):  # or the part of another key
            before[key] = now[key]
    if fixed := [key for key in changed_keys(before, now) if key not in resumable_keys]:
        told = changes_text(fixed, before, now, 8)
        raise ConfigError(
            f"{path}: this run was trained with another config: {told}; "
            "give the old values, or train into another folder with --run"
        )
    return was != now or not whole


def _saved_config(path: Path, resolved: Resolved[Any]) -> tuple[Flat | None, bool]:
    """The saved values by dotted key, and whether the file is as it was written.

    Where it is not, the values are those that the newest commit knows; None without file and commit.
    StorageError where a file is there that is not the config of a run, and no commit knows better.
    """
    record = recorded(path.parent)
    if record and changed_config(path.parent, record):
        return record.config, False
    if not os.path.lexists(path):
        return None, False
    saved = read_json(path, limit=CONFIG_LIMIT, follow=False)
    require_family(path, saved, type(resolved.config))
    if not isinstance(saved, dict) or not isinstance(saved.get("config"), dict) or "provenance" not in saved:
        raise StorageError(f"{path}: not the config of a run; choose a new or empty folder with --run")
    whole = is_sealed(saved)
    if SEAL in saved and not whole:
        raise StorageError(f"{path}: edited or damaged; restore it, or remove the folder")
    return flat(saved["config"]), whole
