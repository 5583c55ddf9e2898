"""Opening of regular files, optionally without following links."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from lm.errors import DataError


def open_file(path: Path, *, follow: bool = True) -> BufferedReader:
    """Open a regular file to read its bytes. With ``follow=False``, links are rejected.

    Never waits for a pipe and never reads a device. Raises OSError if the file is not regular.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ENXIO, "not a regular file", str(path))
    return open(fd, "rb")


def open_regular(path: Path) -> BufferedReader:
    """Open a file of user data. Raises DataError if it is empty, not a regular file or unreadable."""
    try:
        stream = open_file(path)
    except OSError as error:
        if error.errno == errno.ENXIO:
            problem = "not a regular file; save its content to a file and name that file"
        else:
            problem = f"cannot be read ({error.strerror}); check path and permissions"
        raise DataError(f"{path}: {problem}") from error
    except ValueError as error:
        raise DataError(f"{path}: NUL character in the path; choose another path") from error
    if os.fstat(stream.fileno()).st_size == 0:
        stream.close()
        raise DataError(f"{path}: the file is empty; write text to it, or name another file")
    return stream


def require_regular(folder: Path) -> None:
    """Raise DataError if a folder for another library contains a pipe or a device."""
    for path in sorted((*folder.glob("*"), *folder.glob("*/*"))):
        if not path.is_dir() and not path.is_file():
            raise DataError(f"{path}: not a regular file; remove it, or save its content to a file")
