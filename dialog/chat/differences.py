"""Differences between the settings and weights of replies, in words."""

from collections import Counter
from collections.abc import Iterable

from dialog.chat.transcript import Source, Turn
from dialog.decoding.config import DecodeConfig


def difference(decode: DecodeConfig, other: DecodeConfig) -> str:
    """Differences between settings, in the syntax of /set."""
    theirs = other.model_dump()
    return " ".join(f"{key}={value}" for key, value in decode.model_dump().items() if value != theirs[key])


def other_settings(turns: Iterable[Turn], now: DecodeConfig) -> str:
    """A note on settings of old replies that differ from the current ones, else empty."""
    found = Counter(difference(turn.decode, now) for turn in turns if turn.decode)
    if len(found) > 1:
        return "(the old replies were made with several settings)"
    told = next(iter(found), "")
    return f"(the old replies were made with other settings: /set {told})" if told else ""


def other_weights(turns: Iterable[Turn], now: Source | None) -> str:
    """A note on runs and checkpoints of old replies from other weights, else empty."""
    found = {f"{one.run}, {one.checkpoint}" for turn in turns if (one := turn.model) and not _same(one, now)}
    return f"(the old replies are of other weights: {'; '.join(sorted(found))})" if found else ""


def _same(one: Source, other: Source | None) -> bool:
    return other is not None and one.weights == other.weights
