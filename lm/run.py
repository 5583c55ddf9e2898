"""The folder of a run: one writer at a time, its config, its logs, its checkpoints, and the signals it obeys.

::

    RUN/config.json     the resolved config and where each value came from
    RUN/metrics.jsonl   deterministic records; a resumed run continues it bit for bit
    RUN/timing.jsonl    seconds and tokens a second, which no two runs share
    RUN/checkpoints/    see lm.checkpoint
    RUN/corpus          of `dialog train --data`: the prepared corpus
    RUN/lock            held while a process trains here
"""

import hashlib
import json
import os
import socket
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel

from lm.checkpoint import CheckpointStore
from lm.config import Resolved, keys_before, require_family, save_config
from lm.errors import ConfigError, StorageError
from lm.filelock import FileLock
from lm.inputs import (
    CHECKPOINTS,
    CONFIG,
    CONFIG_LIMIT,
    LOG,
    changed_config,
    file_hashes,
    flat,
    flat_config,
    recorded,
    require_same_files,
    value_text,
)
from lm.lines import visible
from lm.stop import StopFlag
from lm.storage import (
    JSON,
    SEAL,
    digest_of,
    finite,
    is_sealed,
    make_folder,
    read_json,
    remove_leftovers,
    require_space,
    storage_errors,
    write_all,
)

__all__ = ["MetricsLog", "Run", "StopFlag"]

LOCK = "lock"
MOMENT = 0.5  # seconds in which a look at the lock, as `runs` takes, has long ended
CORPUS = "corpus"  # a prepared corpus that the run is trained on, made before the run itself
LOG_LOST = "restore it from a copy, or remove it: training goes on, and the log begins anew"


class MetricsLog:
    """A file of JSON lines that only grows, and can be cut back to what a checkpoint knew.

    A last line that a kill left torn is dropped on opening. Numbers that are not finite become null.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest: hashlib._Hash | None = None  # of the whole file, once it was asked for
        with storage_errors(path):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
            self._fd = os.open(path, flags, 0o666)
        try:
            with storage_errors(path):
                if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                    raise StorageError(f"{visible(path)}: not a regular file; remove it")
                self._drop_torn_line()
        except BaseException:
            self.close()
            raise

    def sha256(self, size: int = -1) -> str:
        """SHA-256 of the first ``size`` bytes, or of all; the whole is read once, then each line counts."""
        with storage_errors(self.path):
            if size >= 0:
                return digest_of(self._fd, size).hexdigest()
            if self._digest is None:
                self._digest = digest_of(self._fd, os.fstat(self._fd).st_size)
            return self._digest.hexdigest()

    @property
    def offset(self) -> int:
        """Bytes written so far."""
        with storage_errors(self.path):
            return os.fstat(self._fd).st_size

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line; raises StorageError, with nothing of it left, where the disk refuses."""
        text = json.dumps(finite(record), ensure_ascii=False, allow_nan=False)
        line = f"{text}\n".encode(errors="backslashreplace")  # a lone surrogate becomes its JSON escape
        with storage_errors(self.path, len(line)):
            start = os.fstat(self._fd).st_size
            try:
                write_all(self._fd, line)
            except OSError:
                os.ftruncate(self._fd, start)
                raise
            if self._digest:
                self._digest.update(line)

    def truncate(self, offset: int) -> None:
        """Cut the file back to ``offset`` bytes, durably; StorageError where it has fewer."""
        if (size := self.offset) < offset:
            raise StorageError(
                f"{visible(self.path)}: {size:,} bytes where the checkpoint knows {offset:,}; {LOG_LOST}"
            )
        self._digest = None
        with storage_errors(self.path):
            os.ftruncate(self._fd, offset)
        self.sync()

    def sync(self) -> None:
        """Wait until every line is on the disk."""
        with storage_errors(self.path):
            os.fsync(self._fd)

    def close(self) -> None:
        """Close the file; without effect the second time."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with storage_errors(self.path):
                os.close(fd)

    def _drop_torn_line(self) -> None:
        end = size = os.fstat(self._fd).st_size
        while end > 0:
            start = max(0, end - (1 << 16))
            newline = os.pread(self._fd, end - start, start).rfind(b"\n")
            end = start + newline + 1
            if newline >= 0:
                break
        if end < size:
            os.ftruncate(self._fd, end)


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
        """What a commit records of the run as it is now: see :mod:`lm.inputs`. Raises StorageError."""
        config = flat_config(self._config)
        self._files = self._files or file_hashes(self.folder)  # all is there before the first commit
        size, sha256 = self.metrics.offset, self.metrics.sha256()
        free = sorted(key for key in config if key in self._free)
        return {
            "files": self._files,
            "config": config,
            "free": free,
            "log": {"size": size, "sha256": sha256},
        }

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
            f"{visible(folder)}: holds {visible(others[0])} but no {CONFIG}, so it is not a run; "
            "choose a new or empty folder with --run"
        )


def _take_lock(folder: Path) -> FileLock:
    """The folder's lock, held; the file says by whom."""
    path = folder / LOCK
    lock = FileLock(path)
    if not _acquired(lock):
        raise StorageError(
            f"{visible(folder)}: {_holder(path)} is training here; "
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
    changed = [key for key in before.keys() | now.keys() if before.get(key) != now.get(key)]
    if fixed := sorted(set(changed) - resumable_keys):
        listed = ", ".join(
            f"{key} = {value_text(now, key)} (was {value_text(before, key)})" for key in fixed[:8]
        )
        more = f" and {len(fixed) - 8} more" if len(fixed) > 8 else ""
        raise ConfigError(
            f"{visible(path)}: this run was trained with another config: {listed}{more}; "
            "give the old values, or train into another folder with --run"
        )
    return was != now or not whole


def _saved_config(path: Path, resolved: Resolved[Any]) -> tuple[dict[str, JSON] | None, bool]:
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
        raise StorageError(
            f"{visible(path)}: not the config of a run; choose a new or empty folder with --run"
        )
    whole = is_sealed(saved)
    if SEAL in saved and not whole:
        raise StorageError(f"{visible(path)}: edited or damaged; restore it, or remove the folder")
    return dict(flat(saved["config"])), whole
