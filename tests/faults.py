"""Ways to break a disk: kill at any file operation, fail at any of them, fill up, or lose power.

All work by replacing functions of ``os`` while a block runs; the code under test knows nothing of it.
"""

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
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
    """Run an action on a disk that has room for so many bytes and then is full."""
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


@dataclass
class Node:
    """A file or folder: what is on the disk for certain, and what has happened to it since."""

    folder: bool
    content: bytes = b""
    synced: bytes = b""
    entries: dict[str, "Node"] = field(default_factory=dict)
    pending: list[dict[str, "Node | None"]] = field(default_factory=list)

    def change(self, update: dict[str, "Node | None"]) -> None:
        self.pending.append(update)

    def now(self) -> dict[str, "Node"]:
        return _updated(self.entries, self.pending)

    def sync(self) -> None:
        self.synced = self.content
        self.entries, self.pending = self.now(), []


def _updated(entries: dict[str, Node], updates: list[dict[str, Node | None]]) -> dict[str, Node]:
    merged: dict[str, Node | None] = {**entries}
    for update in updates:
        merged |= update
    return {name: node for name, node in merged.items() if node}


def _load(path: Path) -> Node:
    if path.is_dir():
        return Node(True, entries={child.name: _load(child) for child in path.iterdir()})
    return Node(False, content=path.read_bytes(), synced=path.read_bytes())


class PowerLoss:
    """Records an action on a folder, then builds the states that POSIX allows after the power failed.

    Until a file is synced its data may be old, cut, zero or there; until a folder is synced any subset of the
    changes of its names may have happened.
    """

    def __init__(self, root: Path, action: Callable[[], object]) -> None:
        self.root = root
        self._operations: list[tuple[str, tuple[Any, ...]]] = []
        self._before = _load(root)
        paths: dict[int, str] = {}

        def before(name: str, arguments: tuple[Any, ...]) -> None:
            if name == "write":
                self._operations.append(("write", (paths[arguments[0]], bytes(arguments[1]))))
            elif name == "fsync":
                path = paths[arguments[0]]
                self._operations.append(("sync_folder" if os.path.isdir(path) else "sync_file", (path,)))
            elif name != "open":
                self._operations.append((name, arguments))
            elif arguments[1] & os.O_CREAT:
                self._operations.append(("create", arguments))

        def opened(fd: int, path: object) -> None:
            paths[fd] = str(path)

        with intercept(before, opened):
            action()

    def without(self, name: str) -> None:
        """Sabotage: forget every such operation, as if the program had not done it."""
        self._operations = [operation for operation in self._operations if operation[0] != name]

    def __len__(self) -> int:
        return len(self._operations)

    def state(self, length: int, target: Path, choose: random.Random, share: float) -> None:
        """Write a state after ``length`` operations to ``target``; ``share`` of the unsynced is there."""
        root = self._copy(self._before)
        for name, arguments in self._operations[:length]:
            self._apply(root, name, arguments)
        self._materialise(root, target, choose, share)

    def _copy(self, node: Node) -> Node:
        entries = {name: self._copy(child) for name, child in node.entries.items()}
        return Node(node.folder, node.content, node.synced, entries)

    def _locate(self, root: Node, path: object) -> tuple[Node, str]:
        *parents, name = Path(str(path)).relative_to(self.root).parts
        for part in parents:
            root = root.now()[part]
        return root, name

    def _apply(self, root: Node, name: str, arguments: tuple[Any, ...]) -> None:
        if Path(arguments[0]) == self.root:
            assert name == "sync_folder"
            root.sync()
            return
        parent, entry = self._locate(root, arguments[0])
        if name in ("sync_file", "sync_folder"):
            parent.now()[entry].sync()
        elif name == "write":
            parent.now()[entry].content += arguments[1]
        elif name in ("rename", "replace"):
            other, target = self._locate(root, arguments[1])
            assert other is parent
            parent.change({entry: None, target: parent.now()[entry]})
        elif name in ("create", "mkdir"):
            parent.change({entry: Node(name == "mkdir")})
        elif name in ("unlink", "rmdir"):
            parent.change({entry: None})
        else:
            raise AssertionError(name)

    def _materialise(self, node: Node, target: Path, choose: random.Random, share: float) -> None:
        if node.folder:
            target.mkdir()
            through = [update for update in node.pending if choose.random() < share]
            for name, child in _updated(node.entries, through).items():
                self._materialise(child, target / name, choose, share)
            return
        content = node.content
        if content != node.synced and choose.random() >= share:
            cut = choose.randrange(len(content) + 1)
            content = choose.choice([node.synced, content[:cut], bytes(len(content))])
        target.write_bytes(content)
