"""A lock that many processes share and that ends with the process that holds it, however that ends."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from lm.storage import storage_errors


class FileLock:
    """An exclusive lock on a file, which is made where it is missing; a context manager.

    Not re-entrant. Works between machines where their common file system passes locks on, as NFS does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def acquire(self, wait: bool = True) -> bool:
        """Take the lock; without ``wait`` False where another holds it. Raises StorageError."""
        with storage_errors(self._path):
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                os.close(fd)
                return False
            except BaseException:
                os.close(fd)
                raise
        self._fd = fd
        return True

    def release(self) -> None:
        """Give the lock back; without effect the second time."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
