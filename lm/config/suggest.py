"""Suggestions for misspelt names."""

from collections.abc import Iterable
from difflib import SequenceMatcher

MOST_SUGGESTIONS = 3  # maximum number of suggestions
LONGEST_NAME = 200  # maximum characters of a compared name; the cost is the product of lengths
ALIKE = 0.65  # share of equal letters


def nearest(name: str, candidates: Iterable[str]) -> list[str]:
    """The most similar candidates, up to ``MOST_SUGGESTIONS`` ties. Names may be dotted (``section.key``).

    An equal key in another section comes first, then the closest name.
    """
    wanted = _plain(name)
    names = {one: _plain(one) for one in candidates if len(name) <= LONGEST_NAME}
    same = {one: plain for one, plain in names.items() if _key(plain) == _key(wanted)}
    scores = {one: _likeness(wanted, plain) for one, plain in (same or names).items()}
    best = max(scores.values(), default=(0.0, 0.0))
    return [one for one, score in scores.items() if score == best and (same or best[0] >= ALIKE)][
        :MOST_SUGGESTIONS
    ]


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """The suffix ``; did you mean X or Y?`` of a message. Empty without a similar candidate."""
    *others, last = nearest(name, candidates) or [""]
    return f"; did you mean {', '.join(others)}{' or ' if others else ''}{last}?" if last else ""


def _likeness(wanted: str, name: str) -> tuple[float, float]:
    """Shares of equal letters in order, with half the weight on the key, and in any order."""
    key = SequenceMatcher(None, _key(wanted), _key(name))
    whole = SequenceMatcher(None, wanted, name)
    return (key.ratio() + (whole if "." in wanted else key).ratio()) / 2, whole.quick_ratio()


def _key(name: str) -> str:
    return name.rpartition(".")[2]


def _plain(name: str) -> str:
    return name.casefold().replace("-", "_")
