"""Dialogs and utterances, the result of every reader."""

from dataclasses import dataclass

WHOLE = ""  # key of an unsplit source


@dataclass(frozen=True, slots=True)
class Utterance:
    """One utterance of a speaker. ``act`` is its dialog act, empty if not annotated."""

    speaker: str
    text: str
    act: str = ""


@dataclass(frozen=True, slots=True)
class Dialog:
    """A conversation of at least two utterances."""

    id: str
    topic: str
    utterances: tuple[Utterance, ...]
