"""Detection of a text file's format from its first lines."""

import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dialog.corpora.columns import dialect_of, fields_of, is_list_name, is_named, usual
from dialog.corpora.json_items import is_list
from dialog.corpora.json_texts import pair_of
from dialog.corpora.logs import TIMING, WHATSAPP, is_irc
from dialog.corpora.ranking import ends_utterances, is_ranking
from dialog.corpora.readers import PREFIX, TSV_COLUMNS
from dialog.corpora.scripts import scripted
from lm.text.lines import NumberedLine

_KEY = re.compile(r'"([^"\\]+)"\s*:')
_LIST = re.compile(_KEY.pattern + r"\s*\[")
_OPENING = re.compile(r"\s*(?:\{|\[\s*(?:\{|$))")  # of an object, or of an array of objects
_ARRAYS = re.compile(r'\s*\[\s*\[\s*["{]')  # of an array of dialogs without names
_MOST = 1 << 16  # approximate characters of a head


@dataclass(frozen=True)
class FirstLines:
    """First non-blank lines of a file, and the suffix of its name."""

    lines: tuple[str, ...]
    suffix: str

    @classmethod
    def of(cls, lines: Iterable[NumberedLine], suffix: str) -> "FirstLines":
        """Read about 65,536 characters of lines."""
        found, size = [], 0
        for _, text in lines:
            if text.strip():
                found.append(text)
            size += len(text) + 1
            if size > _MOST:
                break
        return cls(tuple(found), suffix)

    def mostly(self, holds: Callable[[str], bool]) -> bool:
        """True if ``holds`` is true for at least 90 % of the lines."""
        return 10 * sum(map(holds, self.lines)) >= 9 * len(self.lines)

    @property
    def first(self) -> str:
        return self.lines[0]

    @cached_property
    def keys(self) -> set[str]:
        """JSON keys of the first line if it is an object, of all lines if it only opens an object or list."""
        return set(_KEY.findall(self._objects))

    @cached_property
    def lists(self) -> set[str]:
        """Those of :attr:`keys` that have a list."""
        return set(_LIST.findall(self._objects))

    @cached_property
    def single(self) -> list[str]:
        """Keys of the first JSON object that have no list; empty if its end is not among the lines."""
        return [key for key, found in self._first_object.items() if not isinstance(found, list)]

    @property
    def scripted(self) -> bool:
        """True if the first JSON object has its utterances as a script or as lists by field."""
        return scripted(self._first_object)

    @property
    def is_turn(self) -> bool:
        """True if the first JSON object is an utterance by its own keys, not those of objects in it."""
        listed = self._first_object.keys() - {*self.single}
        return is_named(self.single) and pair_of(self.single) is None and not any(map(is_list_name, listed))

    @cached_property
    def _first_object(self) -> dict[str, Any]:
        with suppress(ValueError, RecursionError):
            value: dict[str, Any]
            value, _ = json.JSONDecoder().raw_decode(self._objects, self._objects.index("{"))
            return value
        return {}

    @cached_property
    def _objects(self) -> str:
        if not _OPENING.match(self.first):
            return ""
        whole = self.first.lstrip().startswith("{") and _KEY.search(self.first)
        return self.first if whole else "\n".join(self.lines)

    @cached_property
    def columns(self) -> list[str]:
        """Fields of the first line, split at the best-fitting delimiter."""
        return fields_of(self.first[:_MOST], dialect_of(self.first))


def _keys(*keys: str) -> Callable[[FirstLines], bool]:
    return lambda head: head.keys.issuperset(keys)


def _dialogs(head: FirstLines) -> bool:
    """True for a list of utterances or a script, also without a name.

    A list that is not called utterances, or a script, beside a turn or a pair does not count.
    """
    if is_list(head.first, len(head.lines) > 1) or _ARRAYS.match("\n".join(head.lines[:3])):
        return True
    named = any(map(is_list_name, head.lists)) or head.scripted
    return "utterances" in head.lists or (named and not (is_named(head.single) or pair_of(head.single)))


def _irc(head: FirstLines) -> bool:
    """True if at least 90 % of the lines are IRC lines and one has a nick in angle brackets."""
    return head.mostly(lambda text: is_irc(text.strip())) and any("<" in text for text in head.lines)


def _csv(head: FirstLines) -> bool:
    """True for the suffix ``.csv`` or a header of common names, except the header of our own TSV."""
    ours = {column.strip().lower() for column in head.columns}.issuperset(TSV_COLUMNS[:3])
    return head.suffix == ".csv" or (is_named(head.columns) and not (ours and "\t" in head.first))


_OBJECTS = ("zhao", "discord", "telegram", "messages", "dialogs", "pairs", "turns")
DETECTORS: dict[str, Callable[[FirstLines], bool]] = {  # the first match wins
    "zhao": _keys("utts"),
    "discord": lambda head: (
        head.keys.issuperset(("guild", "channel", "messages", "author", "timestamp"))
        and "role" not in head.keys
    ),
    "telegram": lambda head: head.keys.issuperset(("messages", "date")) and "role" not in head.keys,
    "messages": lambda head: (
        head.keys.issuperset(("messages", "content")) or head.keys.issuperset(("conversations", "value"))
    ),
    "dialogs": _dialogs,
    "pairs": lambda head: pair_of(head.keys) is not None,
    "turns": lambda head: usual("text", head.keys) is not None,
    "irc": _irc,
    "whatsapp": lambda head: WHATSAPP.fullmatch(head.first) is not None,
    "srt": lambda head: any(TIMING.fullmatch(text) for text in head.lines[:2]),
    "ranking": lambda head: "\t" in head.first and head.mostly(lambda text: is_ranking(text.split("\t"))),
    "csv": _csv,
    "eou": lambda head: head.mostly(ends_utterances),
    "tsv": lambda head: head.first.count("\t") >= 2,
    "pipes": lambda head: head.first.count("|") >= 2,
    "text": lambda head: head.suffix == ".txt" or PREFIX.match(head.first.strip()) is not None,
}


def detect(head: FirstLines) -> str | None:
    """Format of a text file, or None if it is unknown."""
    if head.is_turn:
        return "turns"
    objects = head.first.lstrip().startswith("{")
    formats = (name for name, matches in DETECTORS.items() if matches(head))
    return next((name for name in formats if not objects or name in _OBJECTS), None)
