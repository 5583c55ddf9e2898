"""Readers of text: Zhao et al.'s JSONL, JSONL of dialogs or turns, TSV, plain text, ``speaker|text|act``.

A reader turns the lines of one file into dialogs. It reports bad lines to the
:class:`~lm.text.lines.InputLog`, which raises or skips. A dialog without an id gets the id
``<stem of the file>:<number>``, counted from 0.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import PurePath
from typing import Any, NamedTuple

from dialog.corpora.columns import KINDS, usual_keys
from dialog.corpora.json_items import parse_objects
from dialog.corpora.replies import UNLINKED, ReplyLink, in_reply_order, link_of
from dialog.utterance import Dialog, Utterance
from lm.errors import encodable
from lm.text.lines import InputLog, NumberedLine, skipped

# a speaker of at most 40 characters and five words, and a text, which follows a full-width colon at once;
# a colon between two digits is part of a time
PREFIX = re.compile(
    r"((?=[^:：]{1,40}[:：])[^\s:：]+(?:\s+[^\s:：]+){0,4})\s*(?::(?:\s+|$)|：(?!(?<=\d：)\d)\s*)(.*)",
    re.DOTALL,
)
_SHORT = 20  # characters of a speaker that the first line alone may show
UNNAMED: Any = object()  # id of a dialog that its file gives none
TSV_COLUMNS = ("dialog", "speaker", "text", "act")
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')  # a field in quotes, whose own quotes are doubled


class RawUtterance(NamedTuple):
    """An unchecked utterance with its line number."""

    line: int
    speaker: Any
    text: Any
    act: Any = ""
    link: ReplyLink = UNLINKED


def _string(value: Any, what: str) -> str:
    """Convert a field to a stripped string.

    Raises ValueError, with the reason and the value, if it is not a string or cannot be stored.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError(f"{what} is not a string", value)
    if "\0" in value or not encodable(value):
        raise ValueError(f"{what} contains a NUL or half a surrogate pair", value)
    return value.strip()


def join_lines(value: Any) -> Any:
    """Join the lines of a string. Other values stay as they are, and :func:`make_dialog` rejects them."""
    return " ".join(value.split()) if isinstance(value, str) else value


def make_dialog(
    name: str, line: int, id: Any, topic: Any, turns: Iterable[RawUtterance], log: InputLog
) -> Dialog | None:
    """Check and build one dialog, with an empty id if ``id`` is UNNAMED.

    Returns None, and logs it, if fewer than two utterances remain.
    """
    utterances: list[Utterance] = []
    last, before = line, len(log.dropped)
    for turn in turns:
        last = turn.line
        try:
            speaker, text = _string(turn.speaker, "speaker"), _string(turn.text, "text")
            act = "" if turn.act is None else _string(turn.act, "act")
            if not speaker or not text:
                raise ValueError("no speaker" if text else "empty utterance", turn.text)
        except ValueError as error:
            reason, value = error.args
            log.bad(name, turn.line, reason, "correct the utterance", excerpt=repr(value))
            continue
        utterances.append(Utterance(speaker, text, act))
    try:
        id = "" if id is UNNAMED or id is None else _string(id, "dialog id")
        topic = "" if topic is None else _text(topic)
    except ValueError as error:
        reason, value = error.args
        log.bad(name, line, reason, "correct the dialog", excerpt=repr(value))
        return None
    if len(utterances) < 2:
        kind = "dialog of one utterance" if utterances else "dialog without utterances"
        excerpt = skipped(log.dropped[before:]) or id
        log.bad(name, last, kind, "a response needs an utterance before it; add one", excerpt=excerpt)
        return None
    return Dialog(id, topic, tuple(utterances))


def _text(topic: Any) -> str:
    """The topic unstripped, since Zhao's topics have quotes inside the string."""
    _string(topic, "topic")
    return str(topic)


def default_id(name: str, number: int) -> str:
    """Id for a dialog without one: the stem of its file, in which bytes that are no UTF-8 are escaped."""
    return f"{PurePath(name).stem.encode(errors='backslashreplace').decode()}:{number}"


def distinct(made: Iterable[tuple[int, Dialog | None]], name: str, log: InputLog) -> list[Dialog]:
    """Collect valid dialogs from (line number, dialog) pairs. Logs every dialog with a repeated id."""
    seen: dict[str, int] = {}
    dialogs: list[Dialog] = []
    for line, dialog in made:
        if dialog is None:
            continue
        if dialog.id in seen:
            first = f"{dialog.id}, first at line {seen[dialog.id]}"
            problem, remedy = "repeated dialog id", "give every dialog its own id"
            log.bad(name, line, problem, remedy, excerpt=first)
            continue
        seen[dialog.id] = line
        dialogs.append(dialog)
    return dialogs


class Made(NamedTuple):
    """A dialog of an object in line ``line``, None if it was dropped; ``named``: the object has an id."""

    line: int
    named: bool
    dialog: Dialog | None


def made_of(line: int, dialog: Dialog | None) -> Made:
    """The dialog of an object, named if it has an id."""
    return Made(line, bool(dialog and dialog.id), dialog)


class ObjectReader(NamedTuple):
    """Reader of JSON objects with ``keys``, each a dialog: ``make(name, line, object, log)``.

    With ``bare``, a list is an object with these ``utterances``.
    """

    keys: tuple[str, ...]
    make: Callable[[str, int, dict[str, Any], InputLog], Dialog | None]
    bare: bool = False

    def read(self, lines: Iterable[NumberedLine], name: str, log: InputLog) -> list[Dialog]:
        """Read a file of such objects, one a line or as the items of an array."""
        objects = parse_objects(lines, name, log, self.keys, bare=self.bare)
        return collect(self.made(objects, name, log), name, log)

    def made(self, objects: Iterable[tuple[int, dict[str, Any]]], name: str, log: InputLog) -> Iterator[Made]:
        """Yield the dialog of every object, given with its line number."""
        for line, value in objects:
            yield made_of(line, self.make(name, line, value, log))


def collect(made: Iterable[Made], name: str, log: InputLog) -> list[Dialog]:
    """Valid dialogs of a file's objects; those without an id get one by their place among the objects."""
    named = (
        (line, dialog if own or dialog is None else replace(dialog, id=default_id(name, number)))
        for number, (line, own, dialog) in enumerate(made)
    )
    return distinct(named, name, log)


def _zhao_dialog(name: str, line: int, value: dict[str, Any], log: InputLog) -> Dialog | None:
    """Dialog of an object that holds its utterances as a list under ``utts``."""
    items = value["utts"]
    if not isinstance(items, list):
        log.bad(name, line, "utts is not a list", "correct the dialog", excerpt=repr(items))
        return None
    turns = []
    for item in items:
        made = _zhao_turn(line, item)
        if made is None:
            problem, remedy = "an item of utts is not an utterance", "write [speaker, text, [act]]"
            log.bad(name, line, problem, remedy, excerpt=repr(item))
        else:
            turns.append(made)
    return make_dialog(name, line, value.get("id", UNNAMED), value.get("topic"), turns, log)


def _zhao_turn(line: int, item: Any) -> RawUtterance | None:
    """Turn from ``[speaker, text]`` or ``[speaker, text, [act, sentiment]]``."""
    if not isinstance(item, list | tuple) or len(item) not in (2, 3):
        return None
    features = item[2] if len(item) == 3 else None
    if features is None:
        return RawUtterance(line, item[0], item[1])
    if not isinstance(features, list | tuple) or not features:
        return None
    return RawUtterance(line, item[0], item[1], features[0])


# {"topic": …, "utts": [[speaker, text, [act, …]], …]} of Zhao et al., "id" optional
ZHAO = ObjectReader(("utts",), _zhao_dialog)


def group_turns(turns: Iterable[tuple[Any, RawUtterance]], name: str, log: InputLog) -> list[Dialog]:
    """Group turns into dialogs by key. The turns of a dialog need not be adjacent.

    A turn that names the one that it answers follows it.
    """
    grouped: dict[str, list[RawUtterance]] = {}
    for key, turn in turns:
        try:
            id = _string(key, "dialog id")
        except ValueError as error:
            reason, value = error.args
            log.bad(name, turn.line, reason, "correct the turn", excerpt=repr(value))
            continue
        grouped.setdefault(id, []).append(turn)
    made = (
        make_dialog(name, turns[0].line, id, "", in_reply_order(turns, [turn.link for turn in turns]), log)
        for id, turns in grouped.items()
    )
    return [dialog for dialog in made if dialog is not None]


def read_turns(lines: Iterable[NumberedLine], name: str, log: InputLog) -> list[Dialog]:
    """Read ``{"dialog": …, "speaker": …, "text": …, "act": …}``, one turn per line, the act optional.

    The keys may have the common names of columns.
    """

    def turns() -> Iterable[tuple[Any, RawUtterance]]:
        for line, value in parse_objects(lines, name, log, KINDS):
            dialog, speaker, text, act = (value[key] if key else None for key in usual_keys(tuple(value)))
            yield dialog, RawUtterance(line, speaker, text, act, link_of(value))

    return group_turns(turns(), name, log)


def read_tsv(lines: Iterable[NumberedLine], name: str, log: InputLog) -> list[Dialog]:
    """Read ``dialog⇥speaker⇥text[⇥act]``. A header of these names may reorder the columns.

    Quotes belong to the text, unless they are around a field and doubled inside.
    """

    def turns() -> Iterable[tuple[Any, RawUtterance]]:
        header: list[str] | None = None
        for number, text in lines:
            if not text.strip():
                continue
            fields = text.split("\t")
            if header is None:
                names = [field.strip().lower() for field in fields]
                if set(TSV_COLUMNS[:3]) <= set(names):
                    header = names
                    continue
                header = list(TSV_COLUMNS[: max(3, min(4, len(fields)))])
            if len(fields) != len(header):
                expected = f"expected {len(header)} columns"
                log.bad(name, number, "wrong number of columns", expected, excerpt=f"{len(fields)} found")
                continue
            row = dict(zip(header, map(_unquoted, fields), strict=True))
            yield row["dialog"], RawUtterance(number, row["speaker"], row["text"], row.get("act", ""))

    return group_turns(turns(), name, log)


def _unquoted(field: str) -> str:
    """A field of a table without the quotes that spreadsheets put around a text with quotes."""
    quoted = _QUOTED.fullmatch(field)
    return quoted[1].replace('""', '"') if quoted and '""' in quoted[1] else field


def read_text(lines: Iterable[NumberedLine], name: str, log: InputLog) -> list[Dialog]:
    """Read one utterance per line, with a blank line between dialogs.

    If half of all lines have the form ``A: text``, or the first one with a short name, every line must.
    With a full-width colon, which sentences have too, over half of the lines must have the form. Otherwise
    speakers A and B alternate by line number, so that a skipped line does not swap the speakers.
    """
    dialogs: list[Dialog] = []
    blank = 0  # number of the last blank line
    # preceding blank line, number, text, and its match if it has the form
    numbered: list[tuple[int, int, str, re.Match[str] | None]] = []
    for number, text in lines:
        if text.strip():
            numbered.append((blank, number, text, PREFIX.match(text.strip())))
        else:
            blank = number
    found = [match for *_, match in numbered if match]
    narrow = [match for match in found if "：" not in match.string[: match.start(2)]]
    # a longer speaker of the first line alone may be a sentence
    alone = bool(narrow and narrow[0] is numbered[0][-1] and len(narrow[0][1]) <= _SHORT)
    prefixed = alone or 2 * len(narrow) >= len(numbered) or 2 * len(found) > len(numbered)
    for index, (start, block) in enumerate(groupby(numbered, key=lambda item: item[0])):
        turns = []
        for _, number, text, match in block:
            if not prefixed:
                turns.append(RawUtterance(number, "AB"[(number - start - 1) % 2], text))
            elif match is None:
                log.bad(
                    name,
                    number,
                    "no speaker",
                    "give all lines the form `A: text`, as others have it",
                    excerpt=text,
                )
            else:
                turns.append(RawUtterance(number, match[1], match[2]))
        dialog = make_dialog(name, start + 1, default_id(name, index), "", turns, log)
        if dialog is not None:
            dialogs.append(dialog)
    return dialogs


def read_pipes(lines: Iterable[NumberedLine], name: str, log: InputLog) -> list[Dialog]:
    """Read ``speaker|text|act`` (N. Duran's Switchboard-Corpus), one dialog per file, id = file stem."""
    turns = []
    for number, text in lines:
        if not text.strip():
            continue
        speaker, _, rest = text.partition("|")
        said, bar, act = rest.rpartition("|")
        if not bar:
            log.bad(name, number, "not of the form speaker|text|act", "correct the line", excerpt=text)
            continue
        turns.append(RawUtterance(number, speaker, said, act))
    dialog = make_dialog(name, 1, PurePath(name).stem, "", turns, log)
    return [] if dialog is None else [dialog]
