"""Order of utterances that name the one that they answer, as those of ConvoKit do."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

_KEYS = ("reply-to", "reply_to", "replyto", "in_reply_to")


class ReplyLink(NamedTuple):
    """Id of an utterance, and that of the one that it answers; None without one."""

    id: str | int | None
    answered: str | int | None


UNLINKED = ReplyLink(None, None)


def link_of(row: Mapping[str, Any]) -> ReplyLink:
    """The link of a JSON object or row of one utterance."""
    key = next((key for key in _KEYS if key in row), None)
    if key is None:
        return UNLINKED
    id, answered = _id(row.get("id")), _id(row[key])
    return ReplyLink(id, None if answered == id else answered)


def in_reply_order(turns: Sequence[T], links: Sequence[ReplyLink]) -> Sequence[T]:
    """Turns of a dialog, each after the one that it answers; as given, if all are there already."""
    place = {link.id: index for index, link in enumerate(links) if link.id is not None}
    before = [None if link.answered is None else place.get(link.answered) for link in links]
    if all(first is None or first < index for index, first in enumerate(before)):
        return turns
    replies: dict[int | None, list[int]] = defaultdict(list)
    for index in reversed(range(len(turns))):
        replies[before[index]].append(index)
    found, waiting = dict[int, None](), replies[None]
    while waiting:
        index = waiting.pop()
        found[index] = None
        waiting += replies[index]
    circles = (index for index in range(len(turns)) if index not in found)
    return [turns[index] for index in (*found, *circles)]


def _id(value: Any) -> str | int | None:
    return value if isinstance(value, str | int) else None
