"""Contiguous parts of an input, and ranges of files that begin and end with a line."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Protocol, Self, TypeVar

from lm.disk.regular import open_regular
from lm.errors import ConfigError, require

BYTES_AT_ONCE = 1 << 20
MOST_PARTS = 1_000_000  # of an input
_SHOWN = 40  # characters of a bad part in the error
_PART = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class PartOf:
    """Part ``index`` of ``count``, from 1."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``I/N``. Raises ConfigError."""
        found = _PART.fullmatch(text)
        if found is None:
            raise ConfigError(f"--part {text[:_SHOWN]}: must be I/N, such as 1/8")
        part, last = cls(int(found[1]), int(found[2])), found[2]
        require(part.count >= 1, f"--part {part}: must be of at least 1 part")
        require(part.count <= MOST_PARTS, f"--part {part}: must be of at most {MOST_PARTS:,} parts")
        require(1 <= part.index <= part.count, f"--part {part}: must be from 1/{last} to {last}/{last}")
        return part

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


class Cuttable(Protocol):
    """Interface of a piece of the input, of ``size`` bytes or an estimate of them."""

    @property
    def size(self) -> int: ...

    def cut(self, start: int, stop: int) -> Self:
        """The lines that begin at these bytes of the piece; of neighbouring ranges, every line is in one."""


T = TypeVar("T", bound=Cuttable)


def part_of(pieces: Mapping[str, Sequence[T]], part: PartOf) -> dict[str, list[T]]:
    """Pieces of a part of the input, by split. Parts follow the order of the input and have equal sizes."""
    total = sum(piece.size for split in pieces.values() for piece in split)
    start, stop = (total * index // part.count for index in (part.index - 1, part.index))
    found: dict[str, list[T]] = {split: [] for split in pieces}
    at = 0  # bytes before the piece
    for split, several in pieces.items():
        for piece in several:
            size = piece.size
            first, last = max(0, start - at), min(size, stop - at)
            at += size
            if first < last and (cut := piece.cut(first, last)).size:
                found[split].append(cut)
    return found


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes ``start`` to ``stop`` of a file; the line that begins there has the number ``first``."""

    path: Path
    start: int
    stop: int
    first: int = 1

    @property
    def size(self) -> int:
        return self.stop - self.start

    def cut(self, start: int, stop: int) -> Self:
        """The range with the lines that begin at these bytes of this one. DataError if it is unreadable."""
        with open_regular(self.path) as stream:
            first, last = (self._line_start(stream, place) for place in (start, stop))
            number = self.first + line_ends(stream, self.start, first)
        return replace(self, start=first, stop=last, first=number)

    def _line_start(self, stream: BinaryIO, place: int) -> int:
        """Byte of the file where the first line begins at or after a byte of the range, or its end."""
        if place <= 0 or place >= self.size:
            return self.start if place <= 0 else self.stop
        at = self.start + place - 1
        stream.seek(at)
        while at < self.stop and (block := stream.read(BYTES_AT_ONCE)):
            if (end := block.find(b"\n")) >= 0:
                return min(at + end + 1, self.stop)
            at += len(block)
        return self.stop

    def content(self) -> dict[str, dict[str, int | str]]:
        """Size and SHA-256 of the bytes, by their place. DataError if the file is unreadable."""
        digest = hashlib.sha256()
        with open_regular(self.path) as stream:
            for block in bytes_between(stream, self.start, self.stop):
                digest.update(block)
        place = f"{self.path}:{self.start}-{self.stop}"
        return {place: {"size": self.size, "sha256": digest.hexdigest()}}


def bytes_between(stream: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    """The bytes of a file from ``start`` to ``stop``, or to its end."""
    stream.seek(start)
    while start < stop and (block := stream.read(min(BYTES_AT_ONCE, stop - start))):
        start += len(block)
        yield block


def line_ends(stream: BinaryIO, start: int, stop: int) -> int:
    """Number of line ends in the bytes of a file from ``start`` to ``stop``."""
    return sum(block.count(b"\n") for block in bytes_between(stream, start, stop))
