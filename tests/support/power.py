"""What is on a disk after the power has failed: only what was synced is there for certain.

A :class:`Recorder` notes the changes that an action makes below a folder. A :class:`Disk` replays some of
them and then builds one of the states that POSIX allows. Until a file is synced, what was written since may
be there, cut, zero or missing; until a folder is synced, any subset of the changes of its names may have
happened.
"""

import base64
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NAMES = ("rename", "replace", "unlink", "remove", "mkdir", "rmdir")


_recorders: list["Recorder"] = []  # the installed ones


@cache
def _watch() -> None:
    """Hook into every event of the process, once: a hook cannot be taken away again, and costs time."""
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = arguments
        for recorder in _recorders:
            recorder.opened(path, flags)


@dataclass(frozen=True)
class Change:
    """One change below the folder; paths are relative to it."""

    kind: str  # create, write, cut, rename, unlink, mkdir, rmdir, sync
    path: str
    data: bytes | None = None  # written; or all that a synced file held, where it was written past ``os``
    target: str = ""  # of a rename
    size: int = 0  # that a file was cut to


class Recorder:
    """Notes what happens below a folder while it is installed, by replacing functions of ``os``.

    A file that is written past them, by ``open`` or a library, is read when it is synced.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = os.path.join(os.path.abspath(folder), "")
        self.changes: list[Change] = []
        self._files: dict[int, str] = {}
        self._foreign: set[str] = set()  # written past os since they were last synced
        self._opening = False
        self._real: dict[str, Any] = {}

    def inside(self, path: object) -> str:
        """The path relative to the folder; ``.`` for itself, empty outside it."""
        if isinstance(path, int):
            return self._files.get(path, "")
        full = os.path.abspath(os.fsdecode(path))  # type: ignore[arg-type]
        if os.path.join(full, "") == self.folder:
            return "."
        return full.removeprefix(self.folder) if full.startswith(self.folder) else ""

    def install(self) -> None:
        """Begin to note; in a process that ends, or until :meth:`remove`."""
        for name in (*NAMES, "open", "write", "fsync", "ftruncate", "truncate"):
            self._real[name] = getattr(os, name)
            setattr(os, name, getattr(self, f"_{name}", None) or self._named(name))
        _recorders.append(self)
        _watch()

    def remove(self) -> None:
        """Give ``os`` its functions back."""
        _recorders.remove(self)
        for name, function in self._real.items():
            setattr(os, name, function)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Noting what the body does."""
        self.install()
        try:
            yield
        finally:
            self.remove()

    def _note(self, kind: str, path: str, **more: Any) -> None:
        self.changes.append(Change(kind, path, **more))

    def _named(self, name: str) -> Callable[..., Any]:
        kind = {"replace": "rename", "remove": "unlink"}.get(name, name)

        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            result = self._real[name](path, *arguments, **options)
            if place := self.inside(path):
                if kind == "rename":
                    self._note(kind, place, target=self.inside(arguments[0]))
                    if place in self._foreign:
                        self._foreign.add(self.inside(arguments[0]))
                else:
                    self._note(kind, place)
            return result

        return call

    def _open(self, path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        place = "" if isinstance(path, int) else self.inside(path)
        new = bool(place) and not os.path.lexists(path)
        self._opening = True
        try:
            fd: int = self._real["open"](path, flags, *arguments, **options)
        finally:
            self._opening = False
        self._files.pop(fd, None)
        if place:
            self._files[fd] = place
            if new:
                self._note("create", place)
            elif flags & os.O_TRUNC:
                self._note("cut", place)
        return fd

    def opened(self, path: object, flags: int) -> None:
        """A file is being opened, past ``os`` unless that is noted already."""
        if self._opening or path is None or isinstance(path, int) or not flags & WRITING:
            return
        if place := self.inside(path):
            self._foreign.add(place)
            if not os.path.lexists(path):
                self._note("create", place)

    def _write(self, fd: int, data: Any) -> int:
        written: int = self._real["write"](fd, data)
        if place := self._files.get(fd):
            self._note("write", place, data=bytes(memoryview(data)[:written]))
        return written

    def _ftruncate(self, fd: int, size: int) -> None:
        self._real["ftruncate"](fd, size)
        if place := self._files.get(fd):
            self._note("cut", place, size=size)

    def _fsync(self, fd: int) -> None:
        if not (place := self._files.get(fd, "")):
            return
        path = os.path.join(self.folder, place)
        known = place == "." or os.path.isdir(path) or place not in self._foreign
        unseen = not known or not any(
            change.path == place or change.target == place for change in self.changes
        )
        data = Path(path).read_bytes() if os.path.isfile(path) and unseen else None
        self._foreign.discard(place)
        self._note("sync", place, data=data)

    def save(self, path: str | Path) -> None:
        """Write the changes to a file."""
        lines = []
        for change in self.changes:
            data = None if change.data is None else base64.b64encode(change.data).decode()
            lines.append(json.dumps([change.kind, change.path, data, change.target, change.size]))
        Path(path).write_text("\n".join(lines), encoding="utf-8")


def load_changes(path: Path) -> list[Change]:
    """What :meth:`Recorder.save` wrote."""
    changes = []
    for line in path.read_text(encoding="utf-8").splitlines():
        kind, name, data, target, size = json.loads(line)
        changes.append(Change(kind, name, None if data is None else base64.b64decode(data), target, size))
    return changes


@dataclass
class Node:
    """A file or folder: what is on the disk for certain, and what has happened to it since."""

    folder: bool
    content: bytes = b""
    synced: bytes = b""
    kept: int = 0  # bytes of ``synced`` that nothing has touched since
    entries: dict[str, "Node"] = field(default_factory=dict)
    pending: list[dict[str, "Node | None"]] = field(default_factory=list)

    def now(self) -> dict[str, "Node"]:
        return _updated(self.entries, self.pending)

    def cut(self, size: int) -> None:
        self.content = self.content[:size]
        self.kept = min(self.kept, size)

    def sync(self) -> None:
        self.synced, self.kept = self.content, len(self.content)
        self.entries, self.pending = self.now(), []

    def after_failure(self, choose: random.Random) -> bytes:
        """What a file holds of which something was not synced, and was lost."""
        start = max(self.kept, choose.randrange(len(self.content) + 1))
        zeroed = self.content[: self.kept] + bytes(len(self.content) - self.kept)
        return choose.choice([self.synced, self.content[:start], zeroed])


def _updated(entries: dict[str, Node], updates: Sequence[dict[str, Node | None]]) -> dict[str, Node]:
    merged: dict[str, Node | None] = {**entries}
    for update in updates:
        merged |= update
    return {name: node for name, node in merged.items() if node}


def _load(path: Path) -> Node:
    if path.is_dir():
        return Node(True, entries={child.name: _load(child) for child in path.iterdir()})
    data = path.read_bytes()
    return Node(False, data, data, len(data))


def _copy(node: Node) -> Node:
    entries = {name: _copy(child) for name, child in node.entries.items()}
    return Node(node.folder, node.content, node.synced, node.kept, entries)


class Disk:
    """A folder as it was before, and the changes to it; builds the states that it may be left in."""

    def __init__(self, before: Path, changes: Sequence[Change]) -> None:
        self._before = _load(before)
        self.changes = list(changes)

    def without(self, wanted: Callable[[Change], bool]) -> None:
        """Sabotage: forget such changes, as if the program had not made them."""
        self.changes = [change for change in self.changes if not wanted(change)]

    def __len__(self) -> int:
        return len(self.changes)

    def state(self, length: int, target: Path, choose: random.Random, share: float) -> None:
        """Write a state after ``length`` changes to ``target``; ``share`` of the unsynced is there."""
        root = _copy(self._before)
        for change in self.changes[:length]:
            _apply(root, change)
        _materialise(root, target, choose, share)


def _locate(root: Node, path: str) -> tuple[Node, str]:
    *parents, name = Path(path).parts
    for part in parents:
        root = root.now()[part]
    return root, name


def _apply(root: Node, change: Change) -> None:
    if change.path == ".":
        assert change.kind == "sync"
        root.sync()
        return
    parent, name = _locate(root, change.path)
    node = parent.now().get(name)
    if change.kind in ("create", "mkdir"):
        parent.pending.append({name: Node(change.kind == "mkdir")})
    elif change.kind in ("unlink", "rmdir"):
        parent.pending.append({name: None})
    elif change.kind == "rename":
        other, target = _locate(root, change.target)
        if other is parent:
            parent.pending.append({name: None, target: node})
        else:  # the two folders reach the disk in either order
            parent.pending.append({name: None})
            other.pending.append({target: node})
    elif node is None:  # made past ``os``, and first seen when it is synced
        assert change.kind == "sync", change
        parent.pending.append(
            {name: Node(False, change.data or b"", change.data or b"", len(change.data or b""))}
        )
    elif change.kind == "write":
        assert change.data is not None
        node.content += change.data
    elif change.kind == "cut":
        node.cut(change.size)
    elif change.kind == "sync":
        if change.data is not None:
            node.content = change.data
        node.sync()
    else:
        raise AssertionError(change)


def _materialise(node: Node, target: Path, choose: random.Random, share: float) -> None:
    if node.folder:
        target.mkdir()
        through = [update for update in node.pending if choose.random() < share]
        for name, child in _updated(node.entries, through).items():
            _materialise(child, target / name, choose, share)
        return
    whole = node.content == node.synced or choose.random() < share
    target.write_bytes(node.content if whole else node.after_failure(choose))
