"""Saved conversations: JSON lines that a chat can continue and that every corpus reader accepts.

A line is an utterance, ``{"dialog", "speaker", "text"}``. The human is A, the model B. The last line of an
exchange also has ``hypotheses`` (best first, with scores in nats), their ``decode`` settings and seed, and
the ``model``. The last line is the reply, or the human's line if the reply is empty, because a corpus has no
empty utterances.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ValidationError

from dialog.decoding.config import DecodeConfig
from lm.config.section import Section
from lm.config.write import setting_text
from lm.console.terminal import sanitize
from lm.disk.storage import read_file, require_writable, write_atomic
from lm.errors import DataError, visible
from lm.runs.outputs import require_foreign

HUMAN: Final = "A"
MODEL: Final = "B"
ENSEMBLE = " + "  # between the runs of an ensemble
LIMIT = 64 << 20  # maximum plausible bytes of a saved conversation
_FOREIGN = "not a conversation that chat has saved"


class _Part(BaseModel):
    """Strict like a section of a config, but with texts of any length."""

    model_config = Section.model_config


class Source(_Part):
    """The weights of a reply; ``weights`` is a hash of their manifests, as in evaluations."""

    run: str
    checkpoint: str
    step: int | None = None  # of an ensemble, and of an average of several checkpoints
    weights: str | None = None


class Alternative(_Part):
    """A hypothesis: its text, and fields of :class:`dialog.decoding.steps.Hypothesis`."""

    text: str
    log_prob: float
    score: float
    finished: bool


class _Record(_Part):
    """A line of the file. Optional fields are None."""

    dialog: str
    speaker: Literal["A", "B"]
    text: str
    hypotheses: tuple[Alternative, ...] | None = None
    decode: DecodeConfig | None = None
    model: Source | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """A line of the human, the model's reply (perhaps empty), and its decoding if known."""

    said: str
    reply: str
    alternatives: tuple[Alternative, ...]
    decode: DecodeConfig | None
    model: Source | None


def one_line(text: str) -> str:
    """``text`` as one sanitised line."""
    return sanitize(text).replace("\n", " ").strip()


def write_transcript(path: Path, turns: Iterable[Turn]) -> int:
    """Write a conversation atomically. Return the number of utterances.

    It only ever overwrites a saved conversation or an empty file. ConfigError for a file of a run or a
    prepared corpus. DataError for any other file. StorageError if the file is not writable.
    """
    require_foreign(path)
    require_writable(path)
    if os.path.lexists(path) and path.stat().st_size:
        try:
            read_transcript(path)
        except DataError as error:
            raise DataError(f"{error}, so it is not replaced; save to another file") from None
    records = [record for turn in turns for record in _records(visible(path.stem), turn)]
    lines = [json.dumps(record, ensure_ascii=False, allow_nan=False) for record in records]
    write_atomic(path, "".join(f"{line}\n" for line in lines).encode())
    return len(records)


def _records(dialog: str, turn: Turn) -> list[dict[str, object]]:
    lines = [_Record(dialog=dialog, speaker=HUMAN, text=turn.said)]
    if turn.reply:
        lines.append(_Record(dialog=dialog, speaker=MODEL, text=turn.reply))
    how = {"hypotheses": turn.alternatives, "decode": turn.decode, "model": turn.model}
    lines[-1] = lines[-1].model_copy(update=how)
    return [line.model_dump(exclude_none=True) for line in lines]


def read_transcript(path: Path) -> list[Turn]:
    """The exchanges of a saved conversation, sanitised.

    DataError if the file is something else or was edited. StorageError if it is unreadable.
    """
    data = read_file(path, limit=LIMIT)
    lines = data.removesuffix(b"\n").split(b"\n")
    records = [_parse(path, number, line) for number, line in enumerate(lines, 1)]
    if not any(record.decode for record in records):
        raise DataError(f"{path}: {_FOREIGN}")
    turns: list[Turn] = []
    for number, record in enumerate(records, 1):
        if record.speaker == HUMAN:
            following = records[number] if number < len(records) else record
            turns.append(_turn(path, number, record, following if following.speaker == MODEL else None))
        elif number == 1 or records[number - 2].speaker == MODEL:
            raise DataError(f"{path}:{number}: {_FOREIGN}: B replies to no line of A")
    return turns


def _parse(path: Path, number: int, line: bytes) -> _Record:
    try:
        return _Record.model_validate_json(line)
    except ValidationError:
        raise DataError(f"{path}:{number}: {_FOREIGN}") from None


def _turn(path: Path, number: int, said: _Record, reply: _Record | None) -> Turn:
    last, text = reply or said, one_line(reply.text) if reply else ""
    found = last.hypotheses or ()
    alternatives = tuple(one.model_copy(update={"text": one_line(one.text)}) for one in found)
    texts = [one.text for one in alternatives]
    if text not in texts and (texts or text):
        raise DataError(f"{path}:{number + bool(reply)}: the reply is not among its hypotheses")
    return Turn(one_line(said.text), text, alternatives, last.decode, last.model)


def difference(decode: DecodeConfig, other: DecodeConfig) -> str:
    """Differences from other settings that have an effect, in the syntax of /set."""
    theirs = other.model_dump()
    differing = {key: value for key, value in decode.model_dump().items() if value != theirs[key]}
    return " ".join(setting_text(*one) for one in differing.items() if not decode.unread_with(one[0]))


def other_settings(turns: Iterable[Turn], now: DecodeConfig) -> str:
    """A note on settings of old replies that differ from the current ones, else empty."""
    found = Counter(difference(turn.decode, now) for turn in turns if turn.decode)
    if len(found) > 1:
        return "(the old replies were made with several settings)"
    changed = next(iter(found), "")
    return f"(the old replies were made with other settings: /set {changed})" if changed else ""


def other_weights(turns: Iterable[Turn], now: Source | None) -> str:
    """A note on runs and checkpoints of old replies from other weights, else empty."""
    found = {f"{one.run}, {one.checkpoint}" for turn in turns if (one := turn.model) and not _same(one, now)}
    return f"(the old replies are of other weights: {'; '.join(sorted(found))})" if found else ""


def _same(one: Source, other: Source | None) -> bool:
    return other is not None and one.weights == other.weights
