"""Parts of a corpus and their readers: files of text, of spelled words or of bytes, and rows of datasets."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from lm.disk.regular import open_regular
from lm.errors import DataError, visible
from lm.text.lines import InputLog, read_lines
from lm.text.parts import FileRange, bytes_between

TextForm = Literal["lines", "spelled", "bytes"]

_ROWS = 1000  # of a dataset, read at once
_ROW = 100  # bytes of a row, as an estimate
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"PK": "unzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz"}


class TextLine(NamedTuple):
    """A line of text or, for bytes, the part of a line in one block."""

    number: int
    text: str
    characters: int  # of the source, line end included; bytes if it is read as bytes
    ends: bool  # the line ends here


@dataclass(frozen=True, slots=True)
class FilePiece(FileRange):
    """A slice of a file in a form.

    The form ``spelled`` is that of the character-level Penn Treebank: a blank after every character, and
    ``_`` for a blank. The form ``bytes`` takes any file. Bytes that are not UTF-8 decode by
    ``surrogateescape``.
    """

    form: TextForm = "lines"

    @property
    def name(self) -> str:
        return str(self.path)

    def lines(self, log: InputLog) -> Iterator[TextLine]:
        """Yield the lines in order. DataError, or an entry of the log, for bad lines. Bytes are never bad."""
        with open_regular(self.path) as stream:
            if self.form == "bytes":
                yield from _stretches(bytes_between(stream, self.start, self.stop), self.first)
                return
            stream.seek(self.start)
            for number, text in read_lines(stream, self.name, log, first=self.first, size=self.size):
                if self.form == "spelled":
                    text = text.replace(" ", "").replace("_", " ")
                yield TextLine(number, text, len(text) + 1, True)

    def cut(self, start: int, stop: int) -> Self:
        """The lines that begin at these bytes; in the form ``bytes``, exactly these bytes."""
        if self.form != "bytes":
            return FileRange.cut(self, start, stop)
        return replace(self, start=self.start + start, stop=self.start + stop)  # line numbers are not needed


def _stretches(pieces: Iterable[bytes], number: int) -> Iterator[TextLine]:
    for piece in pieces:
        *whole, rest = piece.split(b"\n")
        for line in whole:
            yield TextLine(number, line.decode("utf-8", "surrogateescape"), len(line) + 1, True)
            number += 1
        if rest:
            yield TextLine(number, rest.decode("utf-8", "surrogateescape"), len(rest), False)


def whole_file(path: Path, form: TextForm) -> FilePiece:
    """All of a file. DataError if it is unreadable, empty or, for the form ``bytes``, compressed."""
    with open_regular(path) as stream:
        head = stream.read(8)
        size = os.fstat(stream.fileno()).st_size
    for signature, tool in _COMPRESSED.items():
        if form == "bytes" and head.startswith(signature):
            raise DataError(f"{path}: is compressed; unpack it with {tool}")
    return FilePiece(path, 0, size, form=form)


def cut_file(path: Path, form: TextForm, shares: Sequence[float]) -> list[FilePiece]:
    """Split a file into pieces at these shares of its bytes. Text is cut at the next beginning of a line.

    Running text is not shuffled. DataError if a piece would be empty.
    """
    rest, pieces = whole_file(path, form), []
    size = rest.size
    for share in shares:
        place = int(size * share) - rest.start
        pieces.append(rest.cut(0, place))
        rest = rest.cut(place, rest.size)
    pieces.append(rest)
    if any(piece.size < 1 for piece in pieces):
        for _ in whole_file(path, form).lines(InputLog("error", "lm prepare")):
            pass  # a file that is no text has few ends of lines, and is told to be none
        raise DataError(
            f"{path}: too few lines to split: a split would be empty; add lines, or name files for its splits"
        )
    return pieces


@dataclass(frozen=True, slots=True)
class RowsPiece:
    """Rows ``start`` to ``stop`` of a dataset. The text of a row is one line or several."""

    name: str
    dataset: Any
    column: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        return _ROW * (self.stop - self.start)  # an estimate: the exact size needs all rows

    def cut(self, start: int, stop: int) -> Self:
        """The rows that begin at these bytes of the estimate."""
        first, last = (self.start - (-place // _ROW) for place in (start, stop))
        return replace(self, start=first, stop=last)

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


MAX_COPY = 100_000  # largest length of a sequence of the reverse copy task, and number of its symbols


@dataclass(frozen=True, slots=True)
class CopiesPiece:
    """Lines of the reverse copy task (Melis et al. 2020, §4.3): random tokens, ``|``, the same in reverse."""

    name: str
    seed: Sequence[int]
    count: int
    length: int
    symbols: int
    first: int = 1

    @property
    def size(self) -> int:
        return self.count * self._line

    @property
    def identity(self) -> str:
        """All that the lines depend on but their range, as manifests have it."""
        drawn = f"seed={self.seed!r}, count={self.count}, length={self.length}, symbols={self.symbols}"
        return f"CopiesPart(name={self.name!r}, {drawn})"

    @property
    def _line(self) -> int:
        """Bytes of a line, nearly."""
        return (2 * self.length + 1) * len(f"{self.symbols} ")

    def cut(self, start: int, stop: int) -> Self:
        """The lines that begin at these bytes of the estimate."""
        first, last = (-(-place // self._line) for place in (start, stop))
        return replace(self, first=self.first + first, count=last - first)

    def lines(self, log: InputLog) -> Iterator[TextLine]:
        """Yield the same lines at every reading. No line is bad."""
        random = np.random.default_rng(self.seed)
        for number in range(1, self.first + self.count):
            drawn = random.integers(self.symbols, size=self.length)
            if number < self.first:
                continue
            words = [str(token) for token in drawn.tolist()]
            text = f"{' '.join(words)} | {' '.join(reversed(words))}"
            yield TextLine(number, text, len(text) + 1, True)


# Each has a name for messages, an approximate size in bytes, and lines.
Piece = FilePiece | RowsPiece | CopiesPiece
