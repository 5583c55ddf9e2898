"""The nearest valid names to one that is not: what a typing error was probably meant to be."""

import difflib
import math
from collections.abc import Iterable

MOST = 3  # names that are suggested at once
LONGEST = 200  # characters of a name that may be meant to be another; comparing takes their product


def edit_distance(a: str, b: str) -> int:
    """Insertions, deletions, substitutions and swaps of neighbours that turn ``a`` into ``b``.

    The restricted Damerau-Levenshtein distance: no part of the text is edited twice.
    """
    before: list[int] = []
    previous = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        current = [i]
        for j, y in enumerate(b, start=1):
            cost = min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, before[j - 2] + 1)
            current.append(cost)
        before, previous = previous, current
    return previous[-1]


def nearest(name: str, candidates: Iterable[str]) -> list[str]:
    """The candidates that ``name`` most likely meant: all that are equally near, up to ``MOST``.

    Names may be dotted (``section.key``). Case and ``-`` against ``_`` count for little; the right key in
    another section counts for more than one error in the key, and for less than two.
    """
    if len(name) > LONGEST:
        return []
    costs = {candidate: _cost(name, candidate) for candidate in candidates}
    least = min(costs.values(), default=math.inf)
    if least <= _tolerance(name):
        near = {one: _shared_letters(name, one) for one, cost in costs.items() if cost == least}
    else:
        near = {one: likeness for one in costs if (likeness := _likeness(name, one)) >= 0.75}
    best = max(near.values(), default=0.0)
    return [one for one, score in near.items() if score == best][:MOST]


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """``; did you mean X or Y?`` to end a message with, or nothing where no candidate is near."""
    found = nearest(name, candidates)
    if not found:
        return ""
    *others, last = found
    return f"; did you mean {', '.join(others)} or {last}?" if others else f"; did you mean {last}?"


def _cost(name: str, candidate: str) -> float:
    section, _, key = _plain(name).rpartition(".")
    right_section, _, right_key = _plain(candidate).rpartition(".")
    return edit_distance(key, right_key) + min(1.5, edit_distance(section, right_section))


def _likeness(name: str, candidate: str) -> float:
    if "." not in name:  # a key without its section may belong to any
        candidate = candidate.rpartition(".")[2]
    return difflib.SequenceMatcher(None, _plain(name), _plain(candidate)).ratio()


def _shared_letters(name: str, candidate: str) -> float:
    """Share of letters in common, whatever their order: tells a swap from other single errors."""
    return difflib.SequenceMatcher(None, _plain(name), _plain(candidate)).quick_ratio()


def _tolerance(name: str) -> float:
    key = name.rpartition(".")[2]
    return 2.5 if len(key) > 4 else 1.5


def _plain(name: str) -> str:
    return name.casefold().replace("-", "_")
