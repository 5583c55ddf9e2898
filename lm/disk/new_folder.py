"""A folder that is built beside its place and appears there by rename, instead of an older one.

::

    .NAME.lock   exists while a process writes
    .NAME.tmp    the folder being built
    .NAME.old    the older folder until it is replaced
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lm.disk.filelock import exclusive
from lm.disk.storage import make_folder, move, publish_folder, remove_tree, storage_errors, sync
from lm.errors import require, visible
from lm.stop import cleaned_up


def beside(folder: Path, end: str) -> Path:
    """The path of a folder with ``end`` after its name. Raises ConfigError for the root."""
    named = folder if folder.name not in ("", "..") else Path(os.path.abspath(folder))
    require(bool(named.name), f"{folder}: has no name of its own; choose a folder below it")
    return named.with_name(f"{named.name}{end}")


class NewFolder:
    """Place of a folder that ``command`` writes."""

    def __init__(self, path: Path, command: str) -> None:
        self._path, self._command = path, command
        self._final = Path(os.path.abspath(path))
        require(bool(self._final.name), f"{path}: has no name of its own; choose a folder below it")
        self._lock, self._tmp, self._old = (
            self._final.with_name(f".{self._final.name}.{end}") for end in ("lock", "tmp", "old")
        )

    @property
    def disturbed(self) -> bool:
        """True while a process writes, and after one was killed."""
        return any(map(os.path.lexists, (self._lock, self._tmp, self._old)))

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Context manager: lock the place against other processes, and restore it after a killed one.

        A failure leaves no empty parent folder. Raises StorageError at once if another process is writing,
        and ConfigError for the working folder.
        """
        inside = Path(os.getcwd()).is_relative_to(os.path.realpath(self._final))
        require(not inside, f"{visible(self._path)}: you are in this folder; choose another one")
        missing = [parent for parent in self._final.parents if not os.path.lexists(parent)]
        refusal = f"{visible(self._path)}: another `{self._command}` is writing it; wait for it"
        try:
            make_folder(self._final.parent)
            with exclusive(self._lock, refusal):
                self._restore()
                yield
        finally:
            with suppress(OSError):  # of the first that holds a folder
                for parent in missing:
                    os.rmdir(parent)

    @contextmanager
    def building(self) -> Iterator[Path]:
        """Context manager: an empty folder that replaces the older one, or is removed on an exception.

        Use within :meth:`exclusive`.
        """
        with storage_errors(self._path):
            self._tmp.mkdir()
        try:
            with cleaned_up(self._restore):
                yield self._tmp
            for path in sorted(self._tmp.rglob("*"), reverse=True):  # a folder after its content
                sync(path)
            if os.path.lexists(self._final):
                move(self._final, self._old)
            publish_folder(self._tmp, self._final)
        finally:
            self._restore()

    def _restore(self) -> None:
        """Put the older folder back unless a new one has replaced it, and remove temporary folders."""
        if os.path.lexists(self._old) and not os.path.lexists(self._final):
            move(self._old, self._final)
        remove_tree(self._old)
        remove_tree(self._tmp)


def strangers(folder: Path, known: Iterable[str]) -> list[Path]:
    """Files and links below a folder whose relative paths are not ``known``. Raises StorageError."""

    def refuse(error: OSError) -> None:
        raise error

    found = set[Path]()
    with storage_errors(folder):
        for parent, folders, files in os.walk(folder, onerror=refuse):
            links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
            found |= {Path(parent, name) for name in (*files, *links)}
    return sorted(found - {folder / name for name in known})
