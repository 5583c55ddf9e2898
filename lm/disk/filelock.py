"""Exclusive file lock, which the operating system releases when its process exits."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self

import filelock

from lm.disk.storage import require_creatable, storage_errors, write_all
from lm.errors import StorageError
from lm.stop import cleaned_up, deferred_signals, delivered_signals

POLL = 0.01  # seconds between two attempts at a lock that another process holds


class FileLock:
    """Exclusive lock on a file, which is created if missing; as a context manager, it waits for the lock.

    It works between machines if their common file system supports locks, as NFS does. Only the holder may
    remove the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._locked: os.stat_result | None = None  # status of the file when it was locked
        self._lock = filelock.FileLock(
            path, poll_interval=POLL, thread_local=False, fallback_to_soft=False, preserve_lock_file=True
        )

    def acquire(self, wait: bool = True) -> bool:
        """Acquire the lock; without ``wait``, False if another process holds it. Raises StorageError."""
        with storage_errors(self._path):
            os.stat(self._path.parent)  # the library would create it
            try:
                self._lock.acquire(blocking=wait)
            except filelock.Timeout:
                if not os.path.lexists(self._path):  # cannot be created, which the library hides
                    require_creatable(self._path.parent)
                return False
            self._locked = os.stat(self._path)
        return True

    @property
    def in_place(self) -> bool:
        """False once the locked file, or a folder above it, was moved, removed or replaced."""
        with suppress(OSError):
            return self._locked is not None and os.path.samestat(os.stat(self._path), self._locked)
        return False

    def sign(self, holder: bytes) -> None:
        """Write ``holder`` to the locked file, replacing its content. Raises StorageError."""
        with storage_errors(self._path), deferred_signals():
            fd = os.open(self._path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                write_all(fd, holder)
            finally:
                os.close(fd)

    def release(self) -> None:
        """Release the lock; a second call has no effect."""
        self._lock.release(force=True)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def cannot_lock(error: BaseException) -> bool:
    """True for an error of a file system that cannot lock files, also as the cause of a StorageError."""
    number = getattr(error.__cause__ or error, "errno", None)
    return number in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


def held(path: Path) -> bool:
    """True if a process holds the lock of a file; False if its file system has no locks.

    The check needs no write permission. It acquires the lock in shared mode for a moment, so several checks
    do not disturb each other. Raises StorageError.
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
        except OSError as error:
            if cannot_lock(error):
                return False
            raise
        finally:
            os.close(fd)
    return False


@contextmanager
def exclusive(path: Path, refusal: str = "") -> Iterator[None]:
    """Hold the lock of a file, which is removed in the end.

    If another process holds it, wait, or raise StorageError with the message ``refusal`` if that is given.
    Without ``refusal``, a file system that cannot lock files is used without a lock.
    """
    lock = FileLock(path)
    with deferred_signals():
        try:
            acquired = lock.acquire(wait=False)
        except StorageError as error:
            if refusal or not cannot_lock(error):
                raise
            acquired = True
        if not acquired:
            if refusal:
                raise StorageError(refusal)
            with delivered_signals():  # a signal ends the wait
                lock.acquire()
        try:
            with delivered_signals(), cleaned_up(partial(os.unlink, path)):
                yield
        finally:
            try:
                with suppress(OSError):
                    os.unlink(path)
            finally:
                lock.release()
