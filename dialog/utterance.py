"""What every reader yields and every dialog model trains on: conversations, and the splits they come in."""

from dataclasses import dataclass

SPLITS = ("train", "valid", "test")
SPLIT_NAMES = {name: name for name in SPLITS} | {"val": "valid", "validation": "valid", "dev": "valid"}
WHOLE = ""  # the key of a source that is not split


@dataclass(frozen=True, slots=True)
class Utterance:
    """What one speaker said in one go; ``act`` is its dialog act, empty where none was annotated."""

    speaker: str
    text: str
    act: str = ""


@dataclass(frozen=True, slots=True)
class Dialog:
    """A conversation of at least two utterances."""

    id: str
    topic: str
    utterances: tuple[Utterance, ...]
