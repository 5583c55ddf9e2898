"""Crash-safe file operations: files and folders appear complete, by rename, or not at all.

Every change on disk is one call of ``os``. Every failure is a :class:`StorageError` with path and remedy.
"""

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from lm.disk.regular import open_file
from lm.errors import StorageError
from lm.stop import deferred_signals, delivered_signals

Part: TypeAlias = bytes | bytearray | memoryview

CHUNK = 4 << 20  # bytes in one write or read
_LONGEST_KEPT = 255 - len("..000000000000.tmp")  # bytes of a file's name in that of its temporary file
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
_NO_ROOM = "free {needed} there, then run the same command again"
_NO_LOCKS = "the file system cannot lock files: choose a folder on another file system"
_DEVICE = "check the disk, or move the run to another disk"
_REMEDIES = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EFBIG: "raise the file-size limit (ulimit -f){least}",
    errno.EROFS: "the file system is read-only: choose a folder on another file system",
    errno.EACCES: "check the owner and the mode of the file and its folder",
    errno.EPERM: "check the owner and the mode of the file and its folder",
    errno.EIO: _DEVICE,
    errno.ESTALE: _DEVICE,
    errno.ENOENT: "check the path and the content of its folder",
    errno.ENOTDIR: "a part of the path is a file: choose another path",
    errno.EISDIR: "name a file inside it",
    errno.ENOTEMPTY: "remove it or choose another path",
    errno.EEXIST: "remove it or choose another path",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ENOLCK: _NO_LOCKS,
    errno.ENOTSUP: _NO_LOCKS,
    errno.ENOSYS: _NO_LOCKS,
    errno.ENXIO: "replace it with a regular file",
    errno.ELOOP: "replace the symbolic link with its target",
}


def readable(size: int, *, up: bool = True) -> str:
    """Format a size in bytes with three digits, rounded up or down, and a unit."""
    step = 10 ** max(0, len(str(size)) - 3)
    size = (-(-size // step) if up else size // step) * step
    unit = min((len(str(size)) - 1) // 3, len(_UNITS) - 1)
    return f"{size / 1000**unit:,.{'3g' if size < 1000 ** len(_UNITS) else '0f'}} {_UNITS[unit]}"


@contextmanager
def storage_errors(path: Path, needed: int = 0) -> Iterator[None]:
    """Convert an ``OSError`` to a StorageError with ``path``.

    A full disk's remedy names the ``needed`` bytes, at least a megabyte, unless they are 0 for unknown.
    """
    try:
        yield
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        remedy = _REMEDIES.get(error.errno or 0, "check the path and the disk")
        room = readable(max(needed, 10**6)) if needed else "space"
        remedy = remedy.format(needed=room, least=f" to at least {room}" if needed else "")
        raise StorageError(f"{path}: {reason}; {remedy}") from error
    except ValueError as error:
        if "\0" not in str(path):
            raise
        raise StorageError(f"{path}: NUL character in the path; choose another path") from error


def temporary_folder() -> Path:
    """The system's folder of temporary files. Raises StorageError if there is none to write to."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        raise StorageError(
            "temporary files: no folder to write them to; set TMPDIR to a folder that you may write to"
        ) from None


def write_all(fd: int, data: Part) -> None:
    """Write all bytes, in chunks. Raises OSError, possibly after a partial write."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest[:CHUNK]) :]


def write_new(path: Path, data: bytes) -> str:
    """Create a file, which must not exist, and sync it to the disk; returns its SHA-256 in hex."""
    return write_parts(path, len(data), (data,))


def write_parts(path: Path, size: int, parts: Iterable[Part]) -> str:
    """:func:`write_new` of ``size`` bytes in parts. No part is kept after its turn."""
    digest = hashlib.sha256()
    with storage_errors(path, size):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        try:
            for part in parts:
                digest.update(part)
                write_all(fd, part)
                del part
            os.fsync(fd)
        finally:
            os.close(fd)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Sync a file's bytes, or the names in a folder, to the disk."""
    with storage_errors(path):
        _sync(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if not (error.errno == errno.EINVAL and stat.S_ISDIR(os.fstat(fd).st_mode)):
            raise  # some network file systems cannot sync a folder, but they do not reorder its names
    finally:
        os.close(fd)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents durably. An existing folder is not an error."""
    with storage_errors(path):
        if os.path.isdir(path):
            return
        if path.parent != path:
            make_folder(path.parent)
        with suppress(FileExistsError):
            os.mkdir(path)
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        sync(path.parent)


def move(source: Path, target: Path) -> None:
    """Rename, replacing a file at ``target``. Durable only after a sync of the folder of ``target``."""
    with storage_errors(target):
        os.rename(source, target)


def write_atomic(path: Path, data: bytes | Callable[[Path], object]) -> None:
    """Replace ``path`` atomically with ``data``, or with the output of ``data(temporary_path)``.

    After any failure the path holds its old content or the new one. Raises StorageError, which names the path
    and never the temporary one, also for a folder, a device or a symbolic link. A signal can only
    cut off the call of ``data``.
    """
    needed = 0 if callable(data) else len(data)
    with storage_errors(path, needed), deferred_signals():
        _require_replaceable(path)
        remove_leftovers(path.parent, path.name)
        tmp, fd = _temporary(path)
        try:
            if callable(data):
                with delivered_signals():
                    data(tmp)
                _sync(tmp)
            else:
                write_all(fd, data)
                os.fsync(fd)
            move(tmp, path)
            sync(tmp.parent)
        except (Exception, KeyboardInterrupt):
            with suppress(OSError):
                os.unlink(tmp)
            raise
        finally:
            os.close(fd)


def _temporary(path: Path) -> tuple[Path, int]:
    """A new file beside ``path``, open and locked. Files of killed processes are not locked."""
    while True:
        number = secrets.randbelow(10**12)  # not the PID: in a container a killed process had the same
        tmp = path.parent / f".{_kept_name(path.name)}.{number}.tmp"
        fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # a clean-up is about to remove it
            os.close(fd)
            continue
        except OSError:  # no locks on the file system
            pass
        if os.path.lexists(tmp):
            with suppress(OSError):  # there is no older file, or another user's
                os.fchmod(fd, stat.S_IMODE(os.lstat(path).st_mode) | stat.S_IWUSR)
            return tmp, fd
        os.close(fd)


def _kept_name(name: str) -> str:
    """The beginning of a file's name that leaves room for the rest of its temporary name."""
    content = os.fsencode(name)
    return name if len(content) <= _LONGEST_KEPT else content[:_LONGEST_KEPT].decode(errors="ignore")


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Remove temporary files of killed processes in ``folder``, or only those of the file ``name``."""
    kept = re.escape(_kept_name(name)) or ".+"
    leftover = re.compile(rf"\.{kept}\.\d{{1,12}}\.tmp", re.ASCII | re.DOTALL)
    with suppress(OSError):
        for found in filter(leftover.fullmatch, os.listdir(folder)):
            _remove_unless_locked(folder / found)


def _remove_unless_locked(path: Path) -> None:
    with suppress(OSError):
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(fd)


def publish_folder(tmp: Path, final: Path) -> None:
    """Publish the finished flat folder ``tmp``, whose files :func:`write_new` has already synced."""
    sync(tmp)
    move(tmp, final)
    sync(final.parent)


def remove_tree(path: Path) -> None:
    """Delete a file, a link (never its target) or a folder, if it exists."""
    with storage_errors(path), suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
        for name in sorted(os.listdir(path)):
            remove_tree(path / name)
        os.rmdir(path)


def read_file(path: Path, *, limit: int, follow: bool = True) -> bytes:
    """Read a regular file. Raises StorageError if it is missing, unreadable or over ``limit`` bytes."""
    with storage_errors(path), open_file(path, follow=follow) as file:
        data = file.read(limit + 1) if os.fstat(file.fileno()).st_size <= limit else None
    if data is None or len(data) > limit:
        raise StorageError(f"{path}: longer than {limit:,} bytes; the file is damaged or foreign")
    return data


def sha256_file(path: Path, *, follow: bool = True, size: int | None = None) -> str:
    """SHA-256 of a regular file in hex, or of its first ``size`` bytes. Raises StorageError."""
    with storage_errors(path), open_file(path, follow=follow) as file:
        if size is None:
            return hashlib.file_digest(file, "sha256").hexdigest()
        return digest_of(file.fileno(), size).hexdigest()


def digest_of(fd: int, size: int) -> "hashlib._Hash":
    """SHA-256 of an open file's first ``size`` bytes, or of all if it is shorter. Raises OSError."""
    digest, at = hashlib.sha256(), 0
    while at < size and (block := os.pread(fd, min(CHUNK, size - at), at)):
        digest.update(block)
        at += len(block)
    return digest


def require_writable(path: Path) -> None:
    """Raise StorageError if :func:`write_atomic` could not write a file, as a check before long work."""
    folder = path.absolute().parent
    with storage_errors(path):
        if not folder.is_dir():
            raise StorageError(f"{path}: its folder does not exist; create it first")
        _require_replaceable(path)
    require_creatable(folder)


def require_place(folder: Path) -> None:
    """Raise StorageError if a folder could not be created, or files in it, as a check before long work."""
    existing = folder.absolute()
    with storage_errors(folder):
        while not os.path.lexists(existing):
            existing = existing.parent
        if os.path.islink(existing) and not os.path.exists(existing):
            raise StorageError(f"{existing}: a symbolic link that leads nowhere; choose another folder")
        if not os.path.isdir(existing):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    require_creatable(existing)


def require_creatable(folder: Path, remedy: str = "choose another folder") -> None:
    """Raise StorageError with a remedy unless a file can be created in an existing folder, by a trial."""
    try:
        _try_file(folder)
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise StorageError(f"{folder}: no file can be created there ({reason}); {remedy}") from error


def _try_file(folder: Path) -> None:
    """Create and remove a file, if possible one without a name, of which a kill leaves nothing."""
    if hasattr(os, "O_TMPFILE"):
        try:
            os.close(os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o600))
            return
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT):
                raise
    with deferred_signals():  # a file system without nameless files
        tmp, fd = _temporary(folder / "trial")
        os.close(fd)
        os.unlink(tmp)


def _require_replaceable(path: Path) -> None:
    if not os.path.lexists(path) or stat.S_ISREG(mode := os.lstat(path).st_mode):
        return
    if stat.S_ISDIR(mode):
        raise StorageError(f"{path}: is a folder; name a file instead")
    raise StorageError(f"{path}: not a regular file; choose another path")


def require_space(folder: Path, needed: int) -> None:
    """Raise StorageError unless ``needed`` bytes are free on the disk of ``folder``, which need not exist."""
    existing = folder.absolute()
    with storage_errors(folder, needed):
        while not os.path.isdir(existing) and existing != existing.parent:
            existing = existing.parent
        free = shutil.disk_usage(existing).free
    if free < needed:
        raise StorageError(
            f"{folder}: needs {readable(needed)}, but only {readable(free, up=False)} are free; "
            f"free {readable(needed - free)} more, or choose a folder on another disk"
        )
