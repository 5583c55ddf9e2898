"""Metrics log of a run, with one JSON object a line."""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm.disk.jsonfile import finite
from lm.disk.storage import digest_of, storage_errors, write_all
from lm.errors import StorageError

LOG_LOST = "restore it from a copy, or remove it: training goes on, and the log begins anew"


class MetricsLog:
    """An append-only file of JSON lines that can be truncated to its size at a checkpoint.

    An incomplete last line, which a kill may leave, is dropped on opening. Non-finite numbers become null.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest: hashlib._Hash | None = None  # of the whole file, after the first request
        with storage_errors(path):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
            self._fd = os.open(path, flags, 0o666)
        try:
            with storage_errors(path):
                if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                    raise StorageError(f"{path}: not a regular file; remove it")
                self._drop_torn_line()
        except BaseException:
            self.close()
            raise

    def sha256(self, size: int = -1) -> str:
        """SHA-256 of the first ``size`` bytes, or of the file, which is read once and then hashed by line."""
        with storage_errors(self.path):
            if size >= 0:
                return digest_of(self._fd, size).hexdigest()
            if self._digest is None:
                self._digest = digest_of(self._fd, os.fstat(self._fd).st_size)
            return self._digest.hexdigest()

    @property
    def offset(self) -> int:
        """Size of the file in bytes."""
        with storage_errors(self.path):
            return os.fstat(self._fd).st_size

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line, or raise StorageError and leave no part of it."""
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
        """Truncate the file durably to ``offset`` bytes; StorageError if it has fewer."""
        if (size := self.offset) < offset:
            raise StorageError(
                f"{self.path}: {size:,} bytes where the checkpoint knows {offset:,}; {LOG_LOST}"
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
