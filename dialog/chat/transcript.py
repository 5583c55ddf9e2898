"""Saved conversations: JSON lines that any chat can go on from, and that every reader takes for a corpus.

A line is an utterance, ``{"dialog", "speaker", "text"}``; the human is A, the model B. The last line of an
exchange also has ``hypotheses``, best first, with scores in nats, the ``decode`` settings with the seed that
led to them, and the ``model``. That is the reply's, or the human's where the model said nothing: a corpus
has no empty utterances.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ValidationError

from dialog.config import DecodeConfig
from lm.config.section import Section
from lm.console.terminal import sanitize
from lm.disk.storage import read_file, require_writable, write_atomic
from lm.errors import DataError
from lm.runs.outputs import require_foreign

HUMAN: Final = "A"
MODEL: Final = "B"
LIMIT = 64 << 20  # bytes of a saved conversation that are still believable
_FOREIGN = "not a conversation that chat has saved"


class _Part(BaseModel):
    """Strict as a section of a config is, but of texts of any length."""

    model_config = Section.model_config


class Source(_Part):
    """The weights that replied; ``weights`` is a hash of their manifests, as evaluations have it."""

    run: str
    checkpoint: str
    step: int | None
    weights: str | None


class Alternative(_Part):
    """A hypothesis: its text, and what :class:`dialog.beam.Hypothesis` says of it."""

    text: str
    log_prob: float
    score: float
    finished: bool


class _Record(_Part):
    """A line of the file; what an utterance may lack is None."""

    dialog: str
    speaker: Literal["A", "B"]
    text: str
    hypotheses: tuple[Alternative, ...] | None = None
    decode: DecodeConfig | None = None
    model: Source | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What the human said, what the model replied (empty: nothing), and how the reply was found, if known."""

    said: str
    reply: str
    alternatives: tuple[Alternative, ...]
    decode: DecodeConfig | None
    model: Source | None


def one_line(text: str) -> str:
    """``text`` as a line that is safe to show."""
    return sanitize(text).replace("\n", " ").strip()


def write_transcript(path: Path, turns: Iterable[Turn]) -> int:
    """Write a conversation, whole or not at all; returns the number of utterances.

    Only a saved conversation is ever replaced. ConfigError for a file of a run or a prepared corpus,
    DataError for any other file that is no saved conversation, StorageError where nothing can be written.
    """
    require_foreign(path)
    require_writable(path)
    if os.path.lexists(path):
        try:
            read_transcript(path)
        except DataError as error:
            raise DataError(f"{error}, so it is not replaced; save to another file") from None
    records = [record for turn in turns for record in _records(path.stem, turn)]
    lines = [json.dumps(record, ensure_ascii=False, allow_nan=False) for record in records]
    write_atomic(path, "".join(f"{line}\n" for line in lines).encode())
    return len(records)


def _records(dialog: str, turn: Turn) -> list[dict[str, object]]:
    """The lines of an exchange."""
    lines = [_Record(dialog=dialog, speaker=HUMAN, text=turn.said)]
    if turn.reply:
        lines.append(_Record(dialog=dialog, speaker=MODEL, text=turn.reply))
    how = {"hypotheses": turn.alternatives, "decode": turn.decode, "model": turn.model}
    lines[-1] = lines[-1].model_copy(update=how)
    return [line.model_dump(exclude_none=True) for line in lines]


def read_transcript(path: Path) -> list[Turn]:
    """The exchanges of a saved conversation, safe to show.

    DataError where the file is something else, or was edited; StorageError where it cannot be read.
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
            raise DataError(f"{path}:{number}: {_FOREIGN}: B answers nobody")
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
        raise DataError(f"{path}:{number + bool(reply)}: the reply is none of its hypotheses")
    return Turn(one_line(said.text), text, alternatives, last.decode, last.model)
