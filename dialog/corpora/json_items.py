"""Objects of JSON files with their first line numbers: one object per line, or the items of an array."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from dialog.corpora.columns import KINDS, usual
from lm.errors import DataError
from lm.text.lines import InputLog, NumberedLine

_REMEDY = "write one JSON object per line"
_LIST, _TEXTS = re.compile(r"\s*\["), re.compile(r'\s*\[\s*"')
_NEXT = re.compile(r"[\s,]*")  # separators between the items of an array
_AHEAD = 100  # objects read after one without the keys, to tell if it is the only one


def parse_object(
    name: str, line: NumberedLine, log: InputLog, *, bare: bool = False
) -> dict[str, Any] | None:
    """Parse one line of JSONL. Returns None, and logs the line, if it is not a JSON object.

    With ``bare``, a list is an object with these ``utterances``.
    """
    number, text = line
    try:
        value = _named(json.loads(text), bare)
    except (ValueError, RecursionError) as error:
        column, excerpt = 0, "nested too deep or a huge number"
        if isinstance(error, json.JSONDecodeError):
            column, excerpt = error.colno, error.msg
        log.bad(name, number, "not JSON", _REMEDY, column=column, excerpt=excerpt)
        return None
    if not isinstance(value, dict):
        log.bad(name, number, "not a JSON object", _REMEDY, excerpt=text)
        return None
    return value


def _named(value: Any, bare: bool) -> Any:
    return {"utterances": value} if bare and isinstance(value, list) else value


def is_list(line: str, followed: bool) -> bool:
    """True for the first line of a file of lists, one a line, each the utterances of a dialog.

    A line that no other line follows is such a list only if its first item is a text.
    """
    if not _LIST.match(line) or not (followed or _TEXTS.match(line)):
        return False
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(line), list)
    return False


def parse_objects(
    lines: Iterable[NumberedLine], name: str, log: InputLog, keys: tuple[str, ...] = (), *, bare: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for objects with all ``keys``: one per line, items of one array, or one.

    With ``bare``, an item may also be a list, as in :func:`parse_object`.
    """
    rest = iter(lines)
    first = next((line for line in rest if line[1].strip()), None)
    if first is None:
        return
    second = next((line for line in rest if line[1].strip()), None) if bare else None
    rest = chain([first], [second] if second else [], rest)
    if first[1].lstrip().startswith("[") and not (bare and is_list(first[1], second is not None)):
        text = whole_text(rest)
        items = items_of(text, text.index("["), 1, name, log, alone=True)
        yield from _with_keys(((line, _named(item, bare)) for line, item in items), name, log, keys)
    elif is_json(first[1]):
        yield from parse_lines(rest, name, log, keys, bare=bare)
    else:  # perhaps an object over several lines
        whole = [*rest]
        text = whole_text(whole)
        if is_json(text):
            whole = [(first[0], text)]
        yield from parse_lines(whole, name, log, keys, bare=bare)


def is_json(text: str) -> bool:
    """True if a text is one value in JSON."""
    with suppress(ValueError, RecursionError):
        json.loads(text)
        return True
    return False


def parse_lines(
    lines: Iterable[NumberedLine], name: str, log: InputLog, keys: tuple[str, ...] = (), *, bare: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for objects with all ``keys``, one per line."""
    found = ((line[0], parse_object(name, line, log, bare=bare)) for line in lines if line[1].strip())
    yield from _with_keys(found, name, log, keys)


def _with_keys(
    found: Iterator[tuple[int, Any]], name: str, log: InputLog, keys: tuple[str, ...]
) -> Iterator[tuple[int, dict[str, Any]]]:
    seen = False
    for number, value in found:
        if value is None:
            continue
        if not isinstance(value, dict):
            log.bad(name, number, "not a JSON object", "correct the item", excerpt=repr(value))
            continue
        if missing := _missing(tuple(value), keys):
            there, needed = ", ".join(map(str, value)), f"give every object the keys {', '.join(keys)}"
            alone = seen or log.on_bad_line == "skip" or _follows(found, keys)
            log.bad(name, number, f"no key {missing[0]}", needed, excerpt=f"found: {there}", alone=alone)
            continue
        seen = True
        yield number, value


def _follows(found: Iterator[tuple[int, Any]], keys: tuple[str, ...]) -> bool:
    """True if one of the next objects has all keys. Takes them, so that an error has to follow."""
    with suppress(DataError):
        objects = (value for _, value in islice(found, _AHEAD) if isinstance(value, dict))
        return any(not _missing(tuple(value), keys) for value in objects)
    return False


@lru_cache(maxsize=1024)  # the objects of a file have few sets of keys
def _missing(columns: tuple[str, ...], keys: tuple[str, ...]) -> list[str]:
    """Those of ``keys`` that an object lacks. Dialog, speaker and text may have a common name."""
    lacked = (key for key in keys if key not in columns)
    return [key for key in lacked if key not in KINDS or usual(key, columns) is None]


def whole_text(lines: Iterable[NumberedLine]) -> str:
    """Join lines. A missing line number becomes a blank line, so that later lines keep their numbers."""
    parts: list[str] = []
    for number, text in lines:
        parts += [""] * (number - 1 - len(parts))
        parts.append(text)
    return "\n".join(parts)


def items_of(
    text: str, start: int, line: int, name: str, log: InputLog, *, alone: bool = False
) -> Iterator[tuple[int, Any]]:
    """Yield (line number, item) for the JSON array whose bracket is at ``start``, on ``line``.

    With ``alone``, text after the array is an error.
    """
    decoder, at, counted = json.JSONDecoder(), start + 1, start
    while True:
        at = _NEXT.match(text, at).end()  # type: ignore[union-attr]  # always matches
        line, counted = line + text.count("\n", counted, at), at
        if text.startswith("]", at):
            if alone and text[at + 1 :].strip():
                remedy = "write one array, or one object per line"
                log.bad(name, line, "text after the end of the array", remedy)
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            detail = getattr(error, "msg", "nested too deep or a huge number")
            log.bad(name, line, "not JSON", "the rest is unreadable; export the file again", excerpt=detail)
            return
        yield line, value
