"""Ways to break a disk: kill at any file operation, fail at any of them, or fill up.

All work by replacing functions of ``os`` while a block runs; the code under test knows nothing of it. What is
left when the power fails is in :mod:`power`.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

OPERATIONS = ("open", "write", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir", "ftruncate")


class Killed(BaseException):
    """Stands for SIGKILL: no ``except Exception`` sees it."""


@contextmanager
def intercept(
    before: Callable[[str, tuple[Any, ...]], Any],
    opened: Callable[[int, object], None] = lambda fd, path: None,
) -> Iterator[None]:
    """Call ``before(name, arguments)`` ahead of every file operation; fsync itself is skipped, being slow."""
    real = {name: getattr(os, name) for name in OPERATIONS}

    def wrap(name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            before(name, arguments)
            result = None if name == "fsync" else real[name](*arguments)
            if name == "open":
                opened(result, arguments[0])
            return result

        return call

    try:
        for name in OPERATIONS:
            setattr(os, name, wrap(name))
        yield
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def count_operations(action: Callable[[], object]) -> list[str]:
    """The names of the file operations of an action, in order."""
    names: list[str] = []
    with intercept(lambda name, _: names.append(name)):
        action()
    return names


def kill_at(number: int, action: Callable[[], object]) -> bool:
    """Run an action that dies at file operation ``number``, a write half done; whether it got so far."""
    real_write, seen = os.write, 0

    def before(name: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        seen += 1
        if seen - 1 == number and name == "write":
            real_write(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
        if seen > number:  # the dead do nothing more
            raise Killed

    try:
        with intercept(before):
            action()
    except Killed:
        return True
    return False


def fail_at(number: int, code: int, action: Callable[[], object]) -> None:
    """Run an action of which file operation ``number``, and no other, fails with an errno."""
    seen = 0

    def before(name: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        seen += 1
        if seen - 1 == number:
            raise OSError(code, os.strerror(code))

    with intercept(before):
        action()


def fill_disk_after(room: int, action: Callable[[], object]) -> None:
    """Run an action on a disk that is full after a number of bytes."""
    real_write = os.write

    def write(fd: int, data: Any) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real_write(fd, data[:room])
        room -= written
        return written

    os.write = write
    try:
        action()
    finally:
        os.write = real_write
