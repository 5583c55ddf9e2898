"""Run folder: lock, config, logs, checkpoints and signals of a training.

::

    RUN/config.json     the resolved config and where each value came from
    RUN/metrics.jsonl   deterministic records; a resumed run continues it bit for bit
    RUN/timing.jsonl    seconds and tokens a second, which differ between runs
    RUN/checkpoints/    see lm.runs.checkpoint
    RUN/corpus          of `dialog train --data`: the prepared corpus
    RUN/lock            held while a process trains here
"""

import json
import os
import shlex
import socket
import time
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel

from lm.config.difference import Flat, changed_keys, changes_text, completed, flat, flat_config
from lm.config.load import Resolved, family_of, require_family, save_config
from lm.disk.filelock import FileLock
from lm.disk.jsonfile import JSON, is_sealed, read_json
from lm.disk.storage import make_folder, remove_leftovers, remove_tree, require_space, storage_errors
from lm.errors import ConfigError, DivergenceError, RunMovedError, StorageError, visible
from lm.launched import several
from lm.runs.checkpoint import CHECKPOINTS, CheckpointStore
from lm.runs.inputs import (
    CONFIG,
    CONFIG_LIMIT,
    FILES,
    LOG,
    TIMING_LOG,
    changed_config,
    file_hashes,
    recorded,
    require_checkpoints,
    require_program,
    require_same_files,
)
from lm.runs.metrics_log import MetricsLog
from lm.stop import NOTICE, StopFlag

LOCK = "lock"
MOMENT = 0.5  # seconds to wait for another process that only inspects the lock, such as `runs`
CORPUS = "corpus"  # prepared corpus of the training, made before the run


class Run:
    """A run folder that this process may write to; a context manager that also handles signals."""

    def __init__(
        self, folder: Path, lock: FileLock, config: BaseModel, free: frozenset[str], *, new: bool = False
    ) -> None:
        self._lock = lock
        self._new = new  # without anything that an earlier command made, except a corpus
        self._config = config
        self._free = free
        self._files: dict[str, JSON] = {}
        self.folder = folder
        self.stop = StopFlag(notice="" if several() else NOTICE)  # torchrun sends signals of its own
        self.checkpoints = CheckpointStore.of(folder)
        self.checkpoints.clean()
        self.metrics = MetricsLog(folder / LOG)
        self.timing = MetricsLog(folder / TIMING_LOG)
        make_folder(folder / CHECKPOINTS)  # before the first line of the logs, whose names this syncs

    @classmethod
    def open(cls, folder: Path, resolved: Resolved[Any], *, resumable_keys: frozenset[str]) -> Self:
        """Lock a folder for training; it is created if missing.

        An existing run must have the same config, except for ``resumable_keys`` (dotted), whose new values
        are saved. A key that an older config lacks counts as its default. Raises ConfigError naming every
        other difference. Raises StorageError if another process trains there, or the folder is not a run.
        """
        refuse_foreign(folder)
        make_folder(folder)
        lock = _take_lock(folder)
        try:
            new = not _others(folder)
            for name in ("", "evaluation", "analysis", "dynamic"):
                remove_leftovers(folder / name)
            if _changed(folder / CONFIG, resolved, resumable_keys):
                save_config(resolved, folder / CONFIG)
            return cls(folder, lock, resolved.config, resumable_keys, new=new)
        except BaseException:
            lock.release()
            raise

    def require_place(self) -> None:
        """Raise RunMovedError if the folder or its lock was moved, removed or replaced meanwhile."""
        if not self._lock.in_place:
            raise RunMovedError(
                f"{visible(self.folder)}: the folder or its lock was moved, removed or replaced during the"
                " training, and nothing more is saved; resume it with --run where the folder is now"
            )

    def record(self) -> dict[str, JSON]:
        """Current record of the run for a commit, see :mod:`lm.runs.inputs`. Raises StorageError."""
        config = flat_config(self._config)
        self._files = self._files or file_hashes(self.folder)  # all files exist before the first commit
        size, sha256 = self.metrics.offset, self.metrics.sha256()
        free = sorted(key for key in config if key in self._free)
        return {"files": self._files, "config": config, "free": free, "log": {"size": size, "sha256": sha256}}

    def preflight(self, bytes_needed: int) -> None:
        """Raise StorageError, naming both sizes, unless ``bytes_needed`` are free."""
        try:
            require_space(self.folder, bytes_needed)
        except StorageError:
            if self._new:
                self._discard()
            raise

    def _discard(self) -> None:
        """Remove what this command made, so that the next one may have another config."""
        self.metrics.close()
        self.timing.close()
        made = [name for name in FILES if name != CONFIG]
        last = CONFIG  # without it, the rest would not be a run
        for name in (CHECKPOINTS, LOG, self.timing.path.name, *made, last):
            remove_tree(self.folder / name)

    def close(self) -> None:
        """Restore signal handlers, close logs and release the lock; a second call has no effect."""
        self.stop.uninstall()
        self.metrics.close()
        self.timing.close()
        self._lock.release()

    def __enter__(self) -> Self:
        self.stop.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the run. Raises Interrupted if a signal came while the training finished or diverged.

        Nothing else has obeyed it. Among several processes only torchrun knows whom it has stopped.
        """
        self.close()
        if (kind is None or issubclass(kind, DivergenceError)) and not several():
            self.stop.check("the training had ended; the same command shows how")


def _others(folder: Path) -> list[str]:
    """Names in a folder besides a lock, a corpus and leftovers of killed processes."""
    with storage_errors(folder):
        names = os.listdir(folder) if os.path.isdir(folder) else []
    leftovers = {name for name in names if name.startswith(".") and name.endswith((".tmp", ".lock"))}
    return sorted(set(names) - leftovers - {LOCK, CORPUS})


def refuse_foreign(folder: Path) -> None:
    """Raise StorageError for a folder inside of a run, and for files that are not even an incomplete run."""
    for parent in Path(os.path.abspath(folder)).parents:
        if (parent / CONFIG).is_file() and CheckpointStore.of(parent).begun:
            raise StorageError(f"{folder}: is inside of the run {visible(parent)}; choose a folder beside it")
    others = _others(folder)
    if CONFIG not in others and others and recorded(folder) is None:
        raise StorageError(
            f"{folder}: holds {others[0]} but no {CONFIG}, so it is not a run; "
            "choose a new or empty folder with --run"
        )


def _take_lock(folder: Path) -> FileLock:
    """Acquire the lock of a folder and write the holder into its file."""
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
    """Acquire a lock; False if another process holds it for longer than ``MOMENT``."""
    until = time.monotonic() + MOMENT
    while not lock.acquire(wait=False):
        if time.monotonic() > until:
            return False
        time.sleep(MOMENT / 50)
    return True


def _holder(path: Path) -> str:
    """Description of the process that signed a lock."""
    try:
        value = read_json(path, limit=1000, follow=False)
    except StorageError:
        value = None
    match value:
        case {"pid": int(pid), "host": str(host)}:
            return f"process {pid} on {visible(host)[:80]}"
    return "another process"


def require_same_config(folder: Path, resolved: Resolved[Any], *, resumable_keys: frozenset[str]) -> None:
    """Raise ConfigError like :meth:`Run.open`, before data are read, which another config may make fail.

    Raises StorageError for an imported run, or if other files of the run changed since its training.
    """
    _require_training(folder, family_of(type(resolved.config)))
    _changed(folder / CONFIG, resolved, resumable_keys)
    require_same_files(folder)


def _require_training(folder: Path, family: str) -> None:
    """Raise StorageError for a run that was imported, whose one commit holds weights but no training."""
    commit = CheckpointStore.of(folder).newest()
    if commit is None or commit.state:
        return
    require_program(folder, family)
    started = f"--set train.start_from={shlex.quote(str(folder))} --run NEW"
    remedy = f"train a new run from its weights: {started}" if family == "lm" else "choose another --run"
    raise StorageError(f"{visible(folder)}: imported without optimiser state, so not resumable; {remedy}")


def _changed(path: Path, resolved: Resolved[Any], resumable_keys: frozenset[str]) -> bool:
    """True if the saved config is missing, damaged or different; ConfigError if fixed keys differ.

    Raises StorageError for a run that has lost its checkpoints, which would begin anew.
    """
    require_checkpoints(path.parent)
    was, whole = _saved_config(path, resolved)
    if was is None:
        return True
    now = flat_config(resolved.config)
    before = completed(was, type(resolved.config))
    if fixed := [key for key in changed_keys(before, now) if key not in resumable_keys]:
        changes = changes_text(fixed, before, now, 8)
        raise ConfigError(
            f"{path if path.exists() else path.parent}: this run was trained with another config: {changes}; "
            "give the old values, or train into another folder with --run"
        )
    return was != now or not whole


def _saved_config(path: Path, resolved: Resolved[Any]) -> tuple[Flat | None, bool]:
    """Saved values by dotted key, and True if the file is unchanged.

    The values of a changed file are those of the newest commit; None without file and commit. Raises
    StorageError if the file is not the config of a run, and no commit records one.
    """
    record = recorded(path.parent)
    if record and changed_config(path.parent, record):
        return record.config, False
    if not os.path.lexists(path):
        return None, False
    saved = read_json(path, limit=CONFIG_LIMIT, follow=False)
    require_family(path, saved, family_of(type(resolved.config)))
    if not isinstance(saved, dict) or not isinstance(saved.get("config"), dict) or "provenance" not in saved:
        raise StorageError(f"{path}: not the config of a run; choose a new or empty folder with --run")
    if not is_sealed(saved):
        raise StorageError(f"{path}: edited or damaged; restore it, or remove the folder")
    return flat(saved["config"]), True
