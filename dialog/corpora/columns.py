"""Lookup of the table columns for dialog, speaker, text and act, by option or by a common name."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dialog.corpora.records import DELIMITERS, Dialect, fields_of
from lm.errors import DataError, visible

_USUAL = {
    "dialog": "dialog dialogue conversation conv thread session chat ticket",
    "speaker": "speaker author user username from sender name nick role who",
    "text": "text message body content utterance value msg",
    "act": "act dialogact dialogueact",
}
_ENDINGS = {"dialog": ("id", ""), "speaker": ("", "id")}
_LISTS = ["dialog", "dialogue", "utterances", "turns", "conversation", "conversations", "messages"]
_LONGEST = 4096  # characters of a header from which the dialect is detected
KINDS = ("dialog", "speaker", "text")


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


def usual(kind: str, columns: Iterable[Any]) -> str | None:
    """Column with a common name for dialog, speaker, text or act, regardless of case and punctuation."""
    known = {re.sub(r"[\W_]+", "", str(column)).lower(): str(column) for column in columns}
    names = (f"{name}{ending}" for name in _USUAL[kind].split() for ending in _ENDINGS.get(kind, ("",)))
    return next((known[name] for name in names if name in known), None)


def is_named(columns: Sequence[str]) -> bool:
    """True if dialog, speaker and text columns all exist under common names."""
    return all(usual(kind, columns) for kind in KINDS)


def find_columns(name: str, row: Mapping[str, Any], options: ReadOptions) -> ReadOptions:
    """Find the columns of a table from its first row: those named in the options, else common names.

    A column of utterance lists has its own common names. Raises DataError, listing the columns, if one
    is missing.
    """
    found = {}
    for kind in (*KINDS, "act"):
        wanted = getattr(options, f"{kind}_column")
        if wanted not in row and wanted == kind:
            wanted = usual(kind, row) or wanted
        found[f"{kind}_column"] = wanted
    if found["text_column"] not in row:
        lists = [column for column in _LISTS if isinstance(row.get(column), list)]
        found["text_column"] = lists[0] if lists and options.text_column == "text" else found["text_column"]
    kinds = ("text",) if isinstance(row.get(found["text_column"]), list) else ("text", "dialog", "speaker")
    for kind in kinds:
        if (column := found[f"{kind}_column"]) not in row:
            columns = visible(", ".join(map(str, row))[:500])
            raise DataError(f"{name}: no column {column}; set --{kind}-column to one of {columns}")
    return replace(options, **found)


def dialect_of(header: str) -> Dialect:
    """Detect delimiter and quote character: those that give the most columns with common names."""
    quote, header = "'" if header.startswith("'") else '"', header[:_LONGEST]

    def fit(delimiter: str) -> tuple[int, int]:
        columns = fields_of(header, Dialect(delimiter, quote))
        return sum(usual(kind, columns) is not None for kind in KINDS), len(columns)

    return Dialect(max(DELIMITERS, key=fit), quote)
