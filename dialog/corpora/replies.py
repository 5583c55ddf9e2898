"""Order of utterances that name the one that they answer, as those of ConvoKit do."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from dialog.corpora.columns import plain

T = TypeVar("T")

_IDS = ("id", "utteranceid", "messageid")
_ANSWERED = ("replyto", "inreplyto")


class ReplyLink(NamedTuple):
    """Id of an utterance, and that of the one that it answers; empty without one."""

    id: str
    answered: str


UNLINKED = ReplyLink("", "")


def link_of(row: Mapping[str, Any]) -> ReplyLink:
    """The link of a JSON object or row of one utterance."""
    id_key, answered_key = _keys(tuple(row))
    if answered_key is None:
        return UNLINKED
    id, answered = (_id(row[key]) if key else "" for key in (id_key, answered_key))
    return ReplyLink(id, "" if answered == id else answered)


@lru_cache(maxsize=1024)  # the rows of a file have few sets of columns
def _keys(columns: tuple[Any, ...]) -> tuple[Any, Any]:
    known = {plain(column): column for column in columns}

    def find(names: tuple[str, ...]) -> Any:
        return next((known[name] for name in names if name in known), None)

    return find(_IDS), find(_ANSWERED)


def _id(value: Any) -> str:
    """An id as a text; numbers of a column with gaps are floats."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, str | int) else ""


def in_reply_order(turns: Sequence[T], links: Sequence[ReplyLink]) -> Sequence[T]:
    """Turns of a dialog, where those that come before what they answer are moved behind it.

    As given if an id occurs twice.
    """
    ids = [link.id for link in links if link.id]
    place = {link.id: index for index, link in enumerate(links) if link.id}
    before = [place.get(link.answered) if link.answered else None for link in links]
    if len(place) < len(ids) or all(first is None or first < index for index, first in enumerate(before)):
        return turns
    found = dict.fromkeys(_ordered(before))
    circles = (index for index in range(len(turns)) if index not in found)
    return [turns[index] for index in (*found, *circles)]


def _ordered(before: Sequence[int | None]) -> Iterator[int]:
    """Places in order, each after the place that ``before`` has for it; without those in a circle."""
    waiting: dict[int, list[int]] = defaultdict(list)
    done: set[int] = set()
    for index, first in enumerate(before):
        if first is not None and first not in done:
            waiting[first].append(index)
            continue
        ready = [index]
        while ready:
            done.add(ready[-1])
            place = ready.pop()
            yield place
            ready += reversed(waiting.pop(place, []))
