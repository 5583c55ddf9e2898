"""A lock that many processes share and that ends with the process that holds it, however that ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from lm.disk.storage import storage_errors, write_all
from lm.errors import StorageError


class FileLock:
    """An exclusive lock on a file, which is made where it is missing; a context manager, which waits.

    Not re-entrant. Works between machines where their common file system passes locks on, as NFS does, and
    as it does for files alone. Nobody but the holder may remove the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def acquire(self, wait: bool = True) -> bool:
        """Take the lock; without ``wait`` False where another holds it. Raises StorageError."""
        with storage_errors(self._path):
            while (fd := self._locked(wait)) is not None:
                if _is_still(self._path, fd):
                    self._fd = fd
                    return True
                os.close(fd)  # its holder has removed it meanwhile
        return False

    def _locked(self, wait: bool) -> int | None:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return fd

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
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def held(path: Path) -> bool:
    """Whether a process holds the lock of a file. Raises StorageError.

    The look needs no right to write. It takes the lock shared for a moment, so it refuses no other look.
    """
    with storage_errors(path):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
    return False


@contextmanager
def alone(path: Path, refusal: str) -> Iterator[None]:
    """Hold the lock of a file, which is removed in the end.

    StorageError, the ``refusal``, at once where another process holds it.
    """
    lock = FileLock(path)
    if not lock.acquire(wait=False):
        raise StorageError(refusal)
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
        lock.release()


def _is_still(path: Path, fd: int) -> bool:
    """Whether an open file is the one of that name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
