"""Preparation of a source in parts: by processes of this machine, or one part a command, joined later.

::

    OUT                     the result, see lm/text/prepared_folder.py
    OUT.parts/2-of-8/       a finished part, until the parts are joined

A part is a contiguous share of the input's bytes, cut at line ends where the format allows it. The parts of
one source are joined in their order, so the result has the same bytes for every number of parts.
"""

import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from lm.disk.jsonfile import read_json
from lm.disk.new_folder import beside
from lm.disk.storage import make_folder, remove_tree, storage_errors
from lm.errors import ConfigError, DataError, StorageError, require, visible
from lm.parallel.workers import in_workers
from lm.text.lines import Dropped
from lm.text.parts import MOST_PARTS, PartOf
from lm.text.prepared_folder import DEFAULT_COMMAND, MANIFEST, OutputFolder, Prepared, write_report

_NAME = re.compile(r"([1-9]\d{,8})-of-([1-9]\d{,8})", re.ASCII)
_NAMED = 8  # missing parts that an error names
_SCRATCH = "parts"  # folder inside of the result that is being built


class Found(NamedTuple):
    """Report of what was read, and dropped pieces of the input."""

    report: Mapping[str, Any]
    dropped: Iterable[Dropped]


class Preparation(ABC):
    """A source and options of a ``prepare`` command. It is made anew in every worker process."""

    command: ClassVar[str]
    version: ClassVar[int]  # of the result's format; a result of another version is rebuilt

    def __init__(self, source: str, options: Any) -> None:
        self.source = source
        self.options = options

    @abstractmethod
    def inputs(self, part: PartOf | None = None) -> dict[str, Any]:
        """Sizes and hashes of the input, or of what a part of it reads. Raises DataError."""

    def learn(self) -> bytes:
        """A trained tokenizer, or anything else that every part needs from the whole input."""
        return b""

    @abstractmethod
    def write_part(self, part: PartOf, learned: bytes, folder: Path) -> Found:
        """Read a part of the input and write what it gives into an empty folder. Raises DataError."""

    @abstractmethod
    def join(self, parts: Sequence[Path], folder: Path) -> Found:
        """Write the result into an empty folder from the folders of all parts. Raises DataError."""

    def named(self, part: PartOf | None = None) -> str:
        """The command that writes the result, or a part."""
        return f"{self.command} --part" if part else self.command

    def wanted(self, part: PartOf | None = None) -> dict[str, Any]:
        """Manifest of the result or of a part, without the files that were written."""
        command = self.named(part)
        return {
            **({"command": command} if command != DEFAULT_COMMAND else {}),
            **({"part": str(part)} if part else {}),
            "format": self.version,
            "source": self.source,
            "options": asdict(self.options),
            "inputs": self.inputs(part),
        }


def prepare_as_asked(
    preparation: Preparation, out: Path, processes: int = 1, part: str | None = None, join: bool = False
) -> Prepared:
    """Write the folder ``out``, the part ``I/N`` of it, or join its parts. ConfigError for two of these."""
    given = {"--processes": processes > 1, "--part": part is not None, "--join": join}
    names = [name for name, there in given.items() if there]
    require(len(names) < 2, f"{' and '.join(names)}: two ways to prepare; leave out one")
    if part is not None:
        return prepare_part(preparation, out, PartOf.parse(part))
    return join_parts(preparation, out) if join else prepare_whole(preparation, out, processes)


def prepare_whole(preparation: Preparation, out: Path, processes: int = 1) -> Prepared:
    """Write the folder ``out``, unless it is up to date. Raises DataError, StorageError or WorkerError."""

    def write(folder: Path) -> Found:
        scratch = folder / _SCRATCH
        scratch.mkdir()
        found = preparation.join(_made(preparation, processes, scratch), folder)
        remove_tree(scratch)
        return found

    return _written(preparation, out, write)


def prepare_part(preparation: Preparation, out: Path, part: PartOf) -> Prepared:
    """Write one part beside ``out``, unless it is up to date. Raises as :func:`prepare_whole`."""
    path = _parts_folder(out) / _name(part)
    make_folder(path.parent)
    return _written(
        preparation, path, lambda folder: preparation.write_part(part, preparation.learn(), folder), part
    )


def join_parts(preparation: Preparation, out: Path) -> Prepared:
    """Write the folder ``out`` from all its finished parts, which are then removed.

    Parts of other options or input stay where they are. Raises as :func:`prepare_whole`, and if a part is
    missing, damaged, or of other options or input.
    """
    joined: list[Path] = []

    def write(folder: Path) -> Found:
        joined.extend(_finished(preparation, out))
        return preparation.join(joined, folder)

    result = _written(preparation, out, write)
    for path in joined or _joined_before(preparation, out):
        remove_tree(path)
    parts = _parts_folder(out)
    if parts.is_dir() and not any(parts.iterdir()):
        remove_tree(parts)
    return result


def _written(
    preparation: Preparation, path: Path, write: Callable[[Path], Found], part: PartOf | None = None
) -> Prepared:
    folder, wanted = OutputFolder(path, preparation.named(part)), preparation.wanted(part)
    if current := folder.current(wanted):
        return current
    with folder.exclusive():
        if current := folder.current(wanted):
            return current
        folder.require_replaceable(wanted)
        with folder.building() as building, storage_errors(path), _without_size():
            found = write(building)
            if preparation.inputs(part) != wanted["inputs"]:
                raise DataError(
                    f"{preparation.source}: changed while it was read; run the same command again"
                )
            return folder.finish(building, wanted, *found)


@contextmanager
def _without_size() -> Iterator[None]:
    """Raise the OSError of a full disk anew: the whole result needs more space than the file that failed."""
    try:
        yield
    except StorageError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            raise cause from None
        raise


def _made(preparation: Preparation, processes: int, scratch: Path) -> list[Path]:
    """Folders of the parts that several processes read, or this one."""
    learned, tasks = preparation.learn(), []
    for part in (PartOf(index, processes) for index in range(1, processes + 1)):
        folder = scratch / _name(part)
        folder.mkdir()
        tasks.append((part, learned, folder))
    if processes == 1:
        _store(preparation, *tasks[0])
    else:
        made_of = (type(preparation), preparation.source, preparation.options)
        in_workers(_work, [(*made_of, *task) for task in tasks])
    return [folder for *_, folder in tasks]


def _work(
    kind: type[Preparation], source: str, options: Any, part: PartOf, learned: bytes, folder: Path
) -> None:
    _store(kind(source, options), part, learned, folder)


def _store(preparation: Preparation, part: PartOf, learned: bytes, folder: Path) -> None:
    write_report(folder, *preparation.write_part(part, learned, folder))


def _parts_folder(out: Path) -> Path:
    return beside(out, ".parts")


def _name(part: PartOf) -> str:
    return f"{part.index}-of-{part.count}"


def _found(out: Path) -> list[tuple[Path, PartOf]]:
    """Folders of parts, in the order of the parts."""
    folder = _parts_folder(out)
    with storage_errors(folder):
        names = os.listdir(folder) if folder.is_dir() else []
    matches = filter(None, map(_NAME.fullmatch, names))
    found = [(folder / match[0], PartOf(int(match[1]), int(match[2]))) for match in matches]
    return sorted((item for item in found if item[1].count <= MOST_PARTS), key=lambda item: item[1])


def _joined_before(preparation: Preparation, out: Path) -> list[Path]:
    """Parts of the result that an earlier command has not removed, perhaps because it was killed."""
    found = []
    for path, part in _found(out):
        with suppress(StorageError):  # not a part
            found += [path] if _fits(preparation, path, part) else []
    return found


def _finished(preparation: Preparation, out: Path) -> list[Path]:
    """Folders of all parts. Raises StorageError, ConfigError or DataError for one that cannot be joined."""
    folder, found = visible(_parts_folder(out)), _found(out)
    counts = sorted({part.count for _, part in found})
    if not found:
        raise StorageError(f"{folder}: holds no part; run {_again('1/N')}, …, N/N first")
    if len(counts) > 1:
        raise StorageError(
            f"{folder}: holds parts of {' and of '.join(map(str, counts))}; remove those of all but one"
        )
    there, [count] = {part.index for _, part in found}, counts
    missing = (str(PartOf(index, count)) for index in range(1, count + 1) if index not in there)
    if named := [*islice(missing, _NAMED)]:
        more = f" and {count - len(there) - _NAMED:,} more" if count - len(there) > _NAMED else ""
        raise StorageError(
            f"{folder}: lacks the part {', '.join(named)}{more}; run {_again(named[0])}, or wait for it"
        )
    for path, part in found:
        OutputFolder(path, preparation.named(part)).require_own_files()
    for path, part in found:
        _require_fitting(preparation, path, part)
    return [path for path, _ in found]


def _fits(preparation: Preparation, path: Path, part: PartOf) -> bool:
    """True for a whole part of this input and these options."""
    return OutputFolder(path, preparation.named(part)).current(preparation.wanted(part)) is not None


def _require_fitting(preparation: Preparation, path: Path, part: PartOf) -> None:
    """Raise an error with the difference unless a part is whole, and of this input and these options."""
    if _fits(preparation, path, part):
        return
    stored: Any = read_json(path / MANIFEST)
    wanted = preparation.wanted(part)
    again = f"run {_again(part)}"
    if stored["source"] != wanted["source"]:
        raise ConfigError(f"{path}: made from {stored['source']}, not {wanted['source']}; {again}")
    made, here = _flat(stored["options"]), _flat(wanted["options"])
    if different := [name for name in here if made.get(name) != here[name]]:
        name = different[0]
        option = f"--{name.replace('_', '-')}"
        raise ConfigError(
            f"{path}: made with {option} {made.get(name)}, here {option} is {here[name]};"
            f" join with the options of the parts, or {again}"
        )
    if stored.get("part", wanted["part"]) != wanted["part"]:
        raise StorageError(f"{path}: holds the part {stored['part']}, not {part}; {again}")
    if stored["inputs"] != wanted["inputs"]:
        raise DataError(f"{path}: made from another version of {preparation.source}; {again}")
    raise StorageError(f"{path}: incomplete, damaged, or of another version of this program; {again}")


def _again(part: PartOf | str) -> str:
    return f"the same command with --part {part} instead of --join"


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name, those of reading included."""
    read = options.get("read", {})
    return {**{name: value for name, value in options.items() if name != "read"}, **read}
