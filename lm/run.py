"""The folder of a run: one writer at a time, its config, its logs, its checkpoints, and the signals it obeys.

::

    RUN/config.json     the resolved config and where each value came from
    RUN/metrics.jsonl   deterministic records; a resumed run continues it bit for bit
    RUN/timing.jsonl    seconds and tokens a second, which no two runs share
    RUN/checkpoints/    see lm.checkpoint
    RUN/corpus          of `dialog train --data`: the prepared corpus
    RUN/lock            held while a process trains here
"""

import json
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel

from lm.checkpoint import CheckpointStore
from lm.config import Resolved, keys_before, require_family, save_config
from lm.errors import ConfigError, StorageError
from lm.filelock import FileLock
from lm.lines import visible
from lm.stop import StopFlag
from lm.storage import (
    JSON,
    finite,
    make_folder,
    read_json,
    remove_tree,
    require_space,
    storage_errors,
    write_all,
)

__all__ = ["MetricsLog", "Run", "StopFlag"]

CONFIG, LOCK = "config.json", "lock"
CORPUS = "corpus"  # a prepared corpus that the run is trained on, made before the run itself


class MetricsLog:
    """A file of JSON lines that only grows, and can be cut back to what a checkpoint knew.

    A last line that a kill left torn is dropped on opening. Numbers that are not finite become null.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
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

    def truncate(self, offset: int) -> None:
        """Cut the file back to ``offset`` bytes, durably; StorageError where it has fewer."""
        if (size := self.offset) < offset:
            raise StorageError(
                f"{visible(self.path)}: {size:,} bytes where the checkpoint knows {offset:,}; "
                "restore the file, or train into another folder with --run"
            )
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

    def __init__(self, folder: Path, lock: FileLock) -> None:
        self._lock = lock
        self.folder = folder
        self.stop = StopFlag()
        self.checkpoints = CheckpointStore(folder / "checkpoints")
        self.checkpoints.clean()
        self.metrics = MetricsLog(folder / "metrics.jsonl")
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
            return cls(folder, lock)
        except BaseException:
            lock.release()
            raise

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
    if CONFIG not in names and (
        others := sorted(name for name in names if name not in (LOCK, CORPUS) and not _is_leftover(name))
    ):
        raise StorageError(
            f"{visible(folder)}: holds {visible(others[0])} but no {CONFIG}, so it is not a run; "
            "choose a new or empty folder with --run"
        )


def _take_lock(folder: Path) -> FileLock:
    """The folder's lock, held; the file says by whom."""
    path = folder / LOCK
    lock = FileLock(path)
    if not lock.acquire(wait=False):
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
    """Save the config the first time; later compare it, and save what may change."""
    for name in filter(_is_leftover, os.listdir(path.parent)):
        remove_tree(path.parent / name)
    if not os.path.lexists(path) or _changed(path, resolved, resumable_keys):
        save_config(resolved, path)


def require_same_config(folder: Path, resolved: Resolved[Any], *, resumable_keys: frozenset[str]) -> None:
    """ConfigError as of :meth:`Run.open`: for a look before data are read, which may fail for that reason."""
    if os.path.lexists(folder / CONFIG):
        _changed(folder / CONFIG, resolved, resumable_keys)


def _changed(path: Path, resolved: Resolved[Any], resumable_keys: frozenset[str]) -> bool:
    """Whether a saved config is another; ConfigError where keys differ that may not."""
    saved = read_json(path, limit=16 << 20, follow=False)
    require_family(path, saved, type(resolved.config))
    if not isinstance(saved, dict) or not isinstance(saved.get("config"), dict) or "provenance" not in saved:
        raise StorageError(
            f"{visible(path)}: not the config of a run; choose a new or empty folder with --run"
        )
    was, now = dict(_flat(saved["config"])), dict(_flat(_dump(resolved.config)))
    before = dict(_flat(_dump(type(resolved.config)()))) | was  # keys that came since then had no other value
    for key, decided in keys_before(type(resolved.config)).items():
        if key not in was and now[key] == was.get(decided):  # or the part of another key
            before[key] = now[key]
    changed = [key for key in before.keys() | now.keys() if before.get(key) != now.get(key)]
    if fixed := sorted(set(changed) - resumable_keys):
        listed = ", ".join(f"{key} = {_value(now, key)} (was {_value(before, key)})" for key in fixed[:8])
        more = f" and {len(fixed) - 8} more" if len(fixed) > 8 else ""
        raise ConfigError(
            f"{visible(path)}: this run was trained with another config: {listed}{more}; "
            "give the old values, or train into another folder with --run"
        )
    return was != now


def _dump(config: BaseModel) -> dict[str, JSON]:
    dumped: dict[str, JSON] = config.model_dump(mode="json")
    return dumped


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, JSON]]:
    """Dotted keys and their values."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _value(values: Mapping[str, JSON], key: str) -> str:
    return ascii(json.dumps(values[key], ensure_ascii=False))[1:-1][:60] if key in values else "absent"
