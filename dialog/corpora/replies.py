"""Order of utterances that name the one that they answer, as those of ConvoKit do."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from dialog.corpora.columns import first_named

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
    return first_named(_IDS, columns), first_named(_ANSWERED, columns)


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
    found = _ordered(before)
    circles = (index for index in range(len(turns)) if index not in found)
    return [turns[index] for index in (*found, *circles)]


def _ordered(before: Sequence[int | None]) -> dict[int, None]:
    """Places in order, each after the place that ``before`` has for it; without those in a circle."""
    waiting: dict[int, list[int]] = defaultdict(list)
    done: dict[int, None] = {}
    for index, first in enumerate(before):
        if first is not None and first not in done:
            waiting[first].append(index)
            continue
        ready = [index]
        while ready:
            place = ready.pop()
            done[place] = None
            ready += reversed(waiting.pop(place, []))
    return done
