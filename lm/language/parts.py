"""Parts of a corpus and their readers: files of text, of spelled words or of bytes, and rows of datasets."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

import numpy as np

from lm.disk.regular import open_regular
from lm.errors import DataError, visible
from lm.text.lines import MAX_LINE, InputLog, read_lines

Style = Literal["lines", "spelled", "bytes"]

_BLOCK = 1 << 20  # bytes read at once
_ROWS = 1000  # of a dataset
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"PK": "unzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz"}


class TextLine(NamedTuple):
    """A line of text or, for bytes, the part of a line in one block."""

    number: int
    text: str
    characters: int  # of the source, line end included; bytes if it is read as bytes
    ends: bool  # the line ends here


class Part(Protocol):
    """A part of a source; ``name`` is for messages, ``size`` is its approximate number of bytes."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    def lines(self, log: InputLog) -> Iterator[TextLine]: ...


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes ``start`` to ``stop`` of a file, which are its lines ``first`` to ``last``; by default all.

    The style ``spelled`` is that of the character-level Penn Treebank: a blank after every character, and
    ``_`` for a blank. The style ``bytes`` takes any file. Bytes that are not UTF-8 decode by
    ``surrogateescape``.
    """

    path: Path
    style: Style = "lines"
    start: int = 0
    stop: int | None = None
    first: int = 1
    last: int | None = None

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int:
        return (self.path.stat().st_size if self.stop is None else self.stop) - self.start

    def lines(self, log: InputLog) -> Iterator[TextLine]:
        """Yield the lines in order. DataError, or an entry of the log, for bad lines. Bytes are never bad."""
        with open_regular(self.path) as stream:
            stream.seek(self.start)
            if self.style == "bytes":
                yield from _stretches(stream, self.size, self.first)
                return
            for number, text in read_lines(stream, self.name, log, first=self.first, last=self.last):
                if self.style == "spelled":
                    text = text.replace(" ", "").replace("_", " ")
                yield TextLine(number, text, len(text) + 1, True)


def _stretches(stream: BinaryIO, size: int, number: int) -> Iterator[TextLine]:
    while size > 0 and (block := stream.read(min(_BLOCK, size))):
        size -= len(block)
        *whole, rest = block.split(b"\n")
        for line in whole:
            yield TextLine(number, line.decode("utf-8", "surrogateescape"), len(line) + 1, True)
            number += 1
        if rest:
            yield TextLine(number, rest.decode("utf-8", "surrogateescape"), len(rest), False)


def whole_file(path: Path, style: Style) -> FilePart:
    """All of a file. DataError if it is unreadable, empty or, for the style ``bytes``, compressed."""
    with open_regular(path) as stream:
        head = stream.read(8)
    for signature, tool in _COMPRESSED.items():
        if style == "bytes" and head.startswith(signature):
            raise DataError(f"{path}: is compressed; unpack it with {tool}")
    return FilePart(path, style)


def cut_file(path: Path, style: Style, shares: Sequence[float]) -> list[FilePart]:
    """Split a file into parts at these shares of its bytes. Text is cut at the next beginning of a line.

    Running text is not shuffled. DataError if a part would be empty.
    """
    whole = whole_file(path, style)
    with open_regular(path) as stream:
        places = [0]
        for share in shares:
            place = int(whole.size * share)
            if style != "bytes":
                stream.seek(max(0, place - 1))
                stream.readline(MAX_LINE)
                place = stream.tell()
            places.append(place)
        places.append(whole.size)
        if any(start >= stop for start, stop in pairwise(places)):
            raise DataError(f"{path}: too short to split; add text, or name files for its splits")
        counts = list(_count_lines(stream, places))
    parts, first = [], 1
    for (start, stop), lines in zip(pairwise(places), counts, strict=True):
        last = None if stop == whole.size else first + lines - 1
        parts.append(FilePart(path, style, start, stop, first, last))
        first += lines
    return parts


def _count_lines(stream: BinaryIO, places: Sequence[int]) -> Iterable[int]:
    """Number of line ends between one place and the next."""
    for start, stop in pairwise(places):
        stream.seek(start)
        rest, count = stop - start, 0
        while rest > 0 and (block := stream.read(min(_BLOCK, rest))):
            count += block.count(b"\n")
            rest -= len(block)
        yield count


@dataclass(frozen=True, slots=True)
class RowsPart:
    """Rows ``start`` to ``stop`` of a dataset. The text of a row is one line or several."""

    name: str
    dataset: Any
    column: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        return 100 * (self.stop - self.start)  # an estimate: the exact size needs all rows

    def lines(self, log: InputLog) -> Iterator[TextLine]:
        """Yield the lines in order. DataError, or an entry of the log, if a row's text is not a string."""
        for start in range(self.start, self.stop, _ROWS):
            rows = self.dataset[start : min(start + _ROWS, self.stop)][self.column]
            for number, text in enumerate(rows, start + 1):
                if not isinstance(text, str):
                    log.bad(
                        self.name, number, f"the {visible(self.column)} is not a string", "correct the row"
                    )
                    continue
                for line in text.removesuffix("\n").split("\n"):
                    yield TextLine(number, line, len(line) + 1, True)


@dataclass(frozen=True, slots=True)
class CopiesPart:
    """Lines of the reverse copy task (Melis et al. 2020, §4.3): random tokens, ``|``, the same in reverse."""

    name: str
    seed: Sequence[int]
    count: int
    length: int
    symbols: int

    @property
    def size(self) -> int:
        return self.count * (2 * self.length + 1) * len(f"{self.symbols} ")

    def lines(self, log: InputLog) -> Iterator[TextLine]:
        """Yield the same lines at every reading. No line is bad."""
        random = np.random.default_rng(self.seed)
        for number in range(1, self.count + 1):
            words = [str(token) for token in random.integers(self.symbols, size=self.length).tolist()]
            text = f"{' '.join(words)} | {' '.join(reversed(words))}"
            yield TextLine(number, text, len(text) + 1, True)
