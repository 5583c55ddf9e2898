"""Reader of the Switchboard Dialog Act Corpus in CSV: a folder or zip of ``sw_0001_4325.utt.csv`` files.

The text gets the form of Zhao et al.'s release. It is lower case, without markup, punctuation and fillers
(``uh``, ``um``). A word said twice in a row is written once. Segments that continue after an interruption
(act ``+``) join the speaker's previous utterance. Non-verbal segments (act ``x``) are dropped.
"""

import io
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from itertools import groupby
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from dialog.corpora.columns import records
from dialog.corpora.readers import RawUtterance, make_dialog
from dialog.utterance import Dialog
from lm.disk.regular import open_regular
from lm.errors import DataError, visible
from lm.text.lines import InputLog, NumberedLine, read_lines

METADATA = "swda-metadata.csv"
_SUFFIX = ".utt.csv"
_COLUMNS = ("conversation_no", "act_tag", "caller", "text")
_MAX_MEMBER = 64 << 20  # bytes; the release's longest table has 200 kB
_MAX_MEMBERS = 20_000

_MARKUP = re.compile(
    r"""\*.*            # an annotator's comment ends the line
    | <[^<>]*>          # <laughter>
    | \{[A-Z]\s         # {D well, }: the kind of a disfluency; its words stay
    | (?<!\w)-?/ | /(?!\w)   # end of a slash unit, unfinished or not
    | -{2,}             # an abandoned word or phrase
    | [^\w'&/-] | _     # brackets of repairs and of doubt, #, +, punctuation""",
    re.VERBOSE,
)
_FILLERS = frozenset(("uh", "um", "er", "eh", "mhm", "uhm"))


def clean(text: str) -> str:
    """Words of an annotated utterance in Zhao et al.'s form, empty if only markup and fillers remain."""
    words = (_trim(word) for word in _MARKUP.sub(" ", text).lower().split())
    return " ".join(word for word, _ in groupby(word for word in words if word and word not in _FILLERS))


def _trim(word: str) -> str:
    """A word without marks at its edges, except the apostrophe of ``boys'``."""
    bare = word.strip("'&/-")
    return bare + "'" if bare and word.endswith("s'") else bare


def read_swda(files: Iterable[Path], log: InputLog) -> list[Dialog]:
    """Read ``.utt.csv`` files or zips of them, with topics from ``swda-metadata.csv`` if it exists."""
    dialogs: list[Dialog] = []
    topics: dict[str, str] = {}
    for name, stream in _tables(files):
        with stream:
            lines = read_lines(stream, name, log)
            if PurePosixPath(name).name == METADATA:
                rows = _rows(lines, name, ("conversation_no", "topic_description"), log)
                topics = {row["conversation_no"]: row["topic_description"] for _, row in rows}
                continue
            dialog = _read_table(lines, name, topics, log)
        if dialog is not None:
            dialogs.append(dialog)
    return dialogs


def _read_table(
    lines: Iterable[NumberedLine], name: str, topics: dict[str, str], log: InputLog
) -> Dialog | None:
    turns: list[RawUtterance] = []
    latest: dict[str, int] = {}  # speaker → index of their latest turn
    number = ""
    for line, row in _rows(lines, name, _COLUMNS, log):
        number = number or row["conversation_no"]
        speaker, act, text = row["caller"].strip(), row["act_tag"].strip(), clean(row["text"])
        if act.split("^")[0].strip() == "x":
            log.drop(name, line, "non-verbal", row["text"])
        elif not text:
            log.drop(name, line, "only markup or fillers", row["text"])
        elif act == "+" and speaker in latest:
            interrupted = turns[latest[speaker]]
            joined = clean(f"{interrupted.text} {text}")  # removes a word repeated across the seam
            turns[latest[speaker]] = interrupted._replace(text=joined)
        else:
            latest[speaker] = len(turns)
            turns.append(RawUtterance(line, speaker, text, act))
    return make_dialog(name, 1, f"sw{number}", topics.get(number, ""), turns, log)


def _rows(
    lines: Iterable[NumberedLine], name: str, columns: Iterable[str], log: InputLog
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, row by column name) of a table. Raises DataError if a column is missing."""
    header: list[str] | None = None
    for number, row in records(lines, name, log):
        if header is None:
            header = row
            missing = [column for column in columns if column not in header]
            if missing:
                raise DataError(
                    f"{name}:{number}: no column {missing[0]}; found {', '.join(header)}; "
                    "expected the CSV release of SwDA"
                )
        elif len(row) != len(header):
            log.bad(
                name,
                number,
                "wrong number of columns",
                f"expected {len(header)}",
                excerpt=f"{len(row)} found",
            )
        else:
            yield number, dict(zip(header, row, strict=True))


def _tables(files: Iterable[Path]) -> Iterator[tuple[str, BinaryIO]]:
    for path in files:
        stream = open_regular(path)
        if path.suffix == ".csv":
            yield str(path), stream
        else:
            with stream:
                yield from _members(stream, str(path))


def _members(archive: BinaryIO, name: str) -> Iterator[tuple[str, BinaryIO]]:
    """Yield the tables of a zip, metadata first, each unpacked in memory.

    Raises DataError if the archive is unsafe, damaged or too large.
    """
    try:
        unpacked = zipfile.ZipFile(archive)
        members = unpacked.infolist()
        if len(members) > _MAX_MEMBERS:
            raise DataError(
                f"{name}: {len(members)} files, more than {_MAX_MEMBERS}; use the CSV release of SwDA"
            )
        for member in members:
            inside = PurePosixPath(member.filename)
            linked = stat.S_ISLNK(member.external_attr >> 16)
            if inside.is_absolute() or ".." in inside.parts or "\\" in member.filename or linked:
                raise DataError(
                    f"{name}: {visible(member.filename)!r} points outside the archive; fetch the zip again"
                )
        wanted = [member for member in members if member.filename.endswith((METADATA, _SUFFIX))]
        wanted = [member for member in wanted if not member.filename.startswith("__MACOSX/")]
        if not wanted:
            raise DataError(f"{name}: a zip without {_SUFFIX} files; unpack it, or save the text as CSV")
        for member in sorted(wanted, key=lambda m: (m.filename.endswith(_SUFFIX), m.filename)):
            with unpacked.open(member) as stream:
                content = stream.read(_MAX_MEMBER + 1)
            if len(content) > _MAX_MEMBER:
                raise DataError(
                    f"{name}: {member.filename} is larger than 64 MiB; use the CSV release of SwDA"
                )
            yield f"{name}/{member.filename}", io.BytesIO(content)
    except _ZIP_ERRORS as error:
        raise DataError(f"{name}: damaged or encrypted zip ({error}); fetch it again") from error


_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    LZMAError,
    struct.error,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
)
