"""Records of CSV files, and lookup of the columns or keys for dialog, speaker, text and act.

Columns of tables are found by option or by a common name, keys of JSON objects by a common name.
"""

import csv
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from lm.config.suggest import did_you_mean
from lm.errors import DataError, visible
from lm.text.lines import InputLog, NumberedLine

_USUAL = {
    "dialog": "dialog dialogue conversation conv thread session chat ticket",
    "speaker": "speaker author role user username from sender name nick who speakeridx",
    "text": "text message body content utterance value msg",
    "act": "act dialogact dialogueact",
}
_LISTS = ("dialog", "dialogue", "utterances", "turns", "conversation", "conversations", "messages")
_ENDINGS = {"dialog": ("id", ""), "speaker": ("", "id")}
_LONGEST = 4096  # characters of a header from which the dialect is detected
KINDS = ("dialog", "speaker", "text")
DELIMITERS = ",;\t|"


class Dialect(NamedTuple):
    """Delimiter and quote character of CSV fields."""

    delimiter: str = ","
    quote: str = '"'


CSV = Dialect()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Format of a source, and column names of tables and data sets.

    ``text_column`` holds one utterance per row, or the list of all utterances of a dialog. The items of such
    a list are strings, or structures whose fields are named like the columns.
    """

    format: str = "auto"
    dialog_column: str = "dialog"
    speaker_column: str = "speaker"
    text_column: str = "text"
    act_column: str = "act"


class UsualKeys(NamedTuple):
    """Columns or keys with a common name for each kind, or None."""

    dialog: str | None
    speaker: str | None
    text: str | None
    act: str | None


def usual(kind: str, columns: Iterable[Any]) -> str | None:
    """Column or key with a common name for dialog, speaker, text or act.

    Case and punctuation do not count. The name ``kind`` comes before all others.
    """
    found: str | None = getattr(usual_keys(tuple(columns)), kind)
    return found


@lru_cache(maxsize=1024)  # the objects of a JSON file have few sets of keys
def usual_keys(columns: tuple[Any, ...]) -> UsualKeys:
    """Columns or keys of every kind, as :func:`usual` finds them."""

    def find(kind: str) -> str | None:
        names = (f"{name}{ending}" for name in _USUAL[kind].split() for ending in _ENDINGS.get(kind, ("",)))
        found = kind if kind in columns else first_named(names, columns)
        return None if found is None else str(found)

    return UsualKeys(*map(find, UsualKeys._fields))


@lru_cache(maxsize=1024)
def plain(column: Any) -> str:
    """The name of a column without case and punctuation."""
    return re.sub(r"[\W_]+", "", str(column)).lower()


def first_named(names: Iterable[str], columns: Iterable[Any]) -> Any:
    """The column with the first of the plain ``names`` that a column has; None without one."""
    known = {plain(column): column for column in columns}
    return next((known[name] for name in names if name in known), None)


def is_list_name(column: Any) -> bool:
    """True for the common names of a list of utterances."""
    return plain(column) in _LISTS


def list_name(row: Mapping[str, Any], first: Sequence[str] = _LISTS) -> str | None:
    """Column or key under which a row or JSON object has its list of utterances, or None.

    The names ``first`` are tried in this order. Another common name must be the only one, or the only one
    whose list has nothing except strings and objects.
    """
    lists = {
        plain(column): column
        for column, value in row.items()
        if isinstance(value, list) and is_list_name(column)
    }
    if found := next((lists[name] for name in first if name in lists), None):
        return found
    filled = [
        column
        for column in lists.values()
        if len(lists) == 1 or (row[column] and all(isinstance(item, str | dict) for item in row[column]))
    ]
    return filled[0] if len(filled) == 1 else None


def speakers_beside(row: Mapping[str, Any], length: int) -> list[str | int] | None:
    """A list called speakers with a name for each of ``length`` utterances; None without one.

    Other lists of this name tell who takes part.
    """
    found = row.get(first_named(("speakers",), row))
    if isinstance(found, list) and len(found) == length and all(isinstance(one, str | int) for one in found):
        return found
    return None


def is_named(columns: Sequence[str]) -> bool:
    """True if dialog, speaker and text columns all exist under common names."""
    return all(usual(kind, columns) for kind in KINDS)


def find_columns(
    name: str, row: Mapping[str, Any], options: ReadOptions, times: Sequence[str] = ()
) -> ReadOptions:
    """Find the columns of a table from its first row: those named in the options, else common names.

    A column of utterance lists has its own common names. A table with ``times`` needs no column of dialogs,
    unless the options name one. Raises DataError, listing the columns, if one is missing.
    """
    found = {}
    for kind in (*KINDS, "act"):
        wanted = getattr(options, f"{kind}_column")
        found[f"{kind}_column"] = (usual(kind, row) if wanted == kind else None) or wanted
    if found["text_column"] not in row and options.text_column == "text":
        found["text_column"] = list_name(row) or "text"
    kinds = ("text",) if isinstance(row.get(found["text_column"]), list) else ("text", "dialog", "speaker")
    for kind in kinds:
        if kind == "dialog" and times and options.dialog_column == kind:
            continue
        if (column := found[f"{kind}_column"]) not in row:
            or_add = ", or add a column that names the dialog of each row" if kind == "dialog" else ""
            raise DataError(f"{no_column(name, kind, column, row)}{or_add}")
    return replace(options, **found)


def no_column(name: str, kind: str, column: str, columns: Iterable[Any]) -> str:
    """Error message for a table without a column, with the command whose option names another one."""
    there = visible(", ".join(map(str, columns))[:500])
    return f"{name}: no column {column}; name one with `dialog prepare … --{kind}-column`: {there}"


def require_columns(source: str, columns: Collection[str], options: ReadOptions) -> None:
    """Raise DataError for a column that the options name, but that is not among those of all tables."""
    for kind in (*KINDS, "act"):
        column = getattr(options, f"{kind}_column")
        if columns and column not in (kind, *columns):
            raise DataError(f"{no_column(source, kind, column, columns)}{did_you_mean(column, columns)}")


def dialect_of(header: str) -> Dialect:
    """Detect delimiter and quote character: those that give the most columns with common names."""
    quote, header = "'" if header.startswith("'") else '"', header[:_LONGEST]

    def fit(delimiter: str) -> tuple[int, int]:
        columns = fields_of(header, Dialect(delimiter, quote))
        return sum(usual(kind, columns) is not None for kind in KINDS), len(columns)

    return Dialect(max(DELIMITERS, key=fit), quote)


def fields_of(text: str, dialect: Dialect) -> list[str]:
    """Fields of a one-line record, or the whole line as one field if it is not CSV."""
    try:
        return next(csv.reader([text], delimiter=dialect.delimiter, quotechar=dialect.quote), [])
    except csv.Error:
        return [text]


def records(
    lines: Iterable[NumberedLine], name: str, log: InputLog, dialect: Dialect = CSV
) -> Iterator[tuple[int, list[str]]]:
    """Yield (first line number, fields) of each record. A quoted field may contain line breaks.

    The line after that of a bad record is the first of the next one.
    """
    rest, again = iter(lines), deque[NumberedLine]()
    taken: list[NumberedLine] = []  # the lines of a record

    def reader() -> Iterator[list[str]]:
        def texts() -> Iterator[str]:
            while (line := again.popleft() if again else next(rest, None)) is not None:
                taken.append(line)
                yield line[1] + "\n"

        return csv.reader(texts(), delimiter=dialect.delimiter, quotechar=dialect.quote, strict=True)

    rows = reader()
    while True:
        taken.clear()
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            start = taken[0][0]
            if "field limit" in str(error):
                most = f"at most {csv.field_size_limit():,} characters; shorten it, or close an open quote"
                log.bad(name, start, "field too long", most)
            else:
                log.bad(name, start, "not CSV", "correct the quotes", excerpt=str(error))
            again.extendleft(reversed(taken[1:]))
            rows = reader()
            continue
        if row:
            yield taken[0][0], row
