"""A lock that many processes share and that ends with the process that holds it, however that ends."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from lm.errors import StorageError
from lm.storage import storage_errors, write_all


class FileLock:
    """An exclusive lock on a folder, or on a file, which is made where it is missing; a context manager.

    Not re-entrant. Works between machines where their common file system passes locks on, as NFS does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def acquire(self, wait: bool = True) -> bool:
        """Take the lock; without ``wait`` False where another holds it. Raises StorageError."""
        with storage_errors(self._path):
            flags = os.O_RDONLY if self._path.is_dir() else os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            fd = os.open(self._path, flags | os.O_NONBLOCK, 0o666)
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

    def claim(self, refusal: str) -> Self:
        """Take the lock at once, or raise StorageError with the ``refusal``."""
        if not self.acquire(wait=False):
            raise StorageError(refusal)
        return self

    def sign(self, holder: bytes) -> None:
        """Make ``holder`` all that the locked file holds. Raises StorageError."""
        with storage_errors(self._path):
            os.ftruncate(self._fd, 0)
            write_all(self._fd, holder)

    def release(self) -> None:
        """Give the lock back; without effect the second time."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __enter__(self) -> Self:
        if self._fd < 0:
            self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
