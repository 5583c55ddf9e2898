"""Strict, memory-bounded reading of text files, and the policy for bad input (``--on-bad-line``)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal

from lm.errors import ConfigError, DataError, visible

OnBadLine = Literal["error", "skip"]
NumberedLine = tuple[int, str]  # number from 1, text without the line end

MAX_LINE = 16 << 20  # bytes; the longest Switchboard dialog is a JSON line of 60 kB
_EXCERPT = 80
_SAMPLE = 4096  # bytes
_CONTROL = bytes(set(range(32)) - set(b"\t\n\f\r\x1b"))
_CONVERT = "convert the file with `iconv -f cp1252 -t utf-8`, or from its own encoding"
_UTF32 = "is UTF-32; convert it with `iconv -f UTF-32 -t UTF-8`"
_SIGNATURES = {  # the first match wins: UTF-32 begins as UTF-16 does
    b"\xff\xfe\0\0": _UTF32,
    b"\0\0\xfe\xff": _UTF32,
    b"\xff\xfe": "is UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`",
    b"\xfe\xff": "is UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`",
    b"\x1f\x8b": "is gzip-compressed; unpack it with gunzip",
    b"PK\x03\x04": "is a zip archive; unpack it with unzip",
    b"%PDF": "is a PDF; save its text as a .txt file",
}


@dataclass(frozen=True, slots=True)
class Dropped:
    """A dropped piece of the input, with the reason."""

    file: str
    line: int
    reason: str
    excerpt: str = ""


def skipped(dropped: Sequence[Dropped]) -> str:
    """Number of dropped pieces, and the first with its reason, as a part of a message; empty without any."""
    if not dropped:
        return ""
    first, count = dropped[0], len(dropped)
    found = f" ({visible(first.excerpt)})" if first.excerpt else ""
    pieces = "one dropped piece" if count == 1 else f"{count:,} dropped pieces, the first"
    return f"after {pieces} in line {first.line:,}: {first.reason}{found}"


class InputLog:
    """Policy for bad input (``error`` raises, ``skip`` drops it) and the list of dropped pieces.

    ``command`` is the command whose ``--on-bad-line skip`` error messages suggest, None = none.
    """

    def __init__(self, on_bad_line: OnBadLine = "error", command: str | None = "dialog prepare") -> None:
        if on_bad_line not in ("error", "skip"):
            raise ConfigError(f"--on-bad-line {on_bad_line}: must be error or skip")
        self.on_bad_line = on_bad_line
        self.command = command
        self.dropped: list[Dropped] = []

    def bad(
        self,
        file: str,
        line: int,
        reason: str,
        remedy: str,
        *,
        column: int = 0,
        excerpt: str = "",
        alone: bool = True,
    ) -> None:
        """Report bad input: raise DataError, or append to ``dropped`` if bad input is skipped.

        ``alone`` is False where the rest of the file is likely bad too, so that skipping does not help.

        Reports count equal reasons over the whole input, so ``reason`` must not vary from line to line.
        """
        if self.on_bad_line == "error":
            place = f"{visible(file)}:{line}:{column}" if column else f"{visible(file)}:{line}"
            quoted = f" ({visible(excerpt[:_EXCERPT])})" if excerpt else ""
            if self.command and alone:
                remedy += f", or leave it out with `{self.command} … --on-bad-line skip`"
            raise DataError(f"{place}: {reason}{quoted}; {remedy}")
        self.drop(file, line, reason, excerpt)

    def drop(self, file: str, line: int, reason: str, excerpt: str = "") -> None:
        """Record input that the format's own rules drop. Never raises."""
        self.dropped.append(Dropped(file, line, reason, excerpt[:_EXCERPT]))


def read_lines(
    stream: BinaryIO, name: str, log: InputLog, *, first: int = 1, size: float = math.inf
) -> Iterator[NumberedLine]:
    """Read the lines of a UTF-8 text, split only at ``\\n``.

    U+2028, U+0085, form feeds and lone CRs stay inside a line. A byte-order mark and the CR of a CRLF are
    removed. The stream must be at the beginning of line ``first``. Reading ends after ``size`` bytes, or with
    the file. Invalid UTF-8, NUL bytes and lines longer than 16 MiB are bad lines, reported with line and
    column. Raises DataError if the whole file is UTF-16, UTF-32 or compressed, or has lines that end with CR
    alone.
    """
    number, text = first - 1, first > 1  # text: a line was good
    while size > 0 and (raw := _read_line(stream, name)):
        number += 1
        size -= len(raw)
        if number == 1:
            for signature, message in _SIGNATURES.items():
                if raw.startswith(signature):
                    raise DataError(f"{name}: {message}")
            if len(raw) <= MAX_LINE and raw.endswith(b"\r") and raw.count(b"\r") > 1:
                raise DataError(f"{name}: its lines end with CR alone; convert it with `tr '\\r' '\\n'`")
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if len(raw) > MAX_LINE:
            array = raw.lstrip().startswith(b"[")
            remedy = "write one object a line, as `jq -c '.[]'` does" if array else "divide it into lines"
            log.bad(name, number, f"longer than {MAX_LINE >> 20} MiB", remedy, alone=not array)
            while raw and not raw.endswith(b"\n"):
                raw = _read_line(stream, name)
                size -= len(raw)
            continue
        reason, remedy, bad, excerpt = "NUL byte", "choose a text file", raw.find(b"\0"), ""
        if bad < 0:
            try:
                line = raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as error:
                reason, remedy, bad = "not UTF-8", _CONVERT, error.start
                excerpt = f"byte 0x{raw[bad]:02x}"
        if bad >= 0:
            if not text and log.on_bad_line == "error":
                _require_text(raw, stream, name)
            column = len(raw[:bad].decode("utf-8", "replace")) + 1
            log.bad(name, number, reason, remedy, column=column, excerpt=excerpt)
            continue
        text = True
        yield number, line


def _require_text(raw: bytes, stream: BinaryIO, name: str) -> None:
    """Raise DataError if the beginning of a file, a bad line and what follows, is not of a UTF-8 text."""
    sample = (raw + stream.read(_SAMPLE))[:_SAMPLE]
    for bits, order, low in ((32, "LE", 0), (32, "BE", 3), (16, "LE", 0), (16, "BE", 1)):
        size = bits // 8
        units = sample[low::size]  # low bytes of the characters
        zeros = sample.count(0) - units.count(0)
        if zeros > 0.8 * (len(sample) - len(units)) and units.count(0) < 0.1 * len(units):
            form = f"UTF-{bits}"
            raise DataError(f"{visible(name)}: is {form}; convert it with `iconv -f {form}{order} -t UTF-8`")
    if len(sample) - len(sample.translate(None, _CONTROL)) > max(4, len(sample) // 50):
        raise DataError(f"{visible(name)}: holds binary data, not text; name a text file")


def _read_line(stream: BinaryIO, name: str) -> bytes:
    try:
        return stream.readline(MAX_LINE + 1)
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror}); check the disk") from error
