"""A small dialog run, and what opening and checking it finds."""

from pathlib import Path
from typing import Any

from dialog.config import DialogConfig
from lm.config.load import Resolved, load_config
from lm.errors import StorageError
from lm.runs.check import check_run
from lm.runs.checkpoint import CheckpointStore
from lm.runs.inputs import opened_run

TALK = "A: good morning\nB: morning , did you sleep ?\nA: i did\nB: good\n\nA: hello\nB: well hello\nA: bye\n"


def settings(folder: Path, *more: str) -> Resolved[DialogConfig]:
    """The config of the run, on the text of a folder."""
    text = [f"data.{split}={folder / 'talk.txt'}" for split in ("train", "valid", "test")]
    text += [
        "head.embedding_size=4",
        "model.embedding_size=4",
        "encoder.utterance_size=4",
        "encoder.context_size=4",
    ]
    text += ["decoder.hidden_size=4", "train.checkpoint_every=1", "train.keep_last=2", "train.log_every=1"]
    text += [
        "train.validate_every=1",
        "train.max_steps=4",
        "decode.beam=3",
        "train.batch_size=2",
        "optim.lr=0.1",
    ]
    return load_config("smalltalk_softmax", DialogConfig, family="dialog", overrides=[*text, *more])


def used(run: Path) -> tuple[Any, ...]:
    """All that evaluating a run depends on; StorageError where it is refused."""
    config, codec = opened_run(run, DialogConfig)
    store = CheckpointStore(run / "checkpoints")
    best = store.open("best")
    return config, codec.fingerprint, codec.vocabulary.counts, best.step, best.state_sha256


def attempted(run: Path) -> tuple[Any, ...] | None:
    """The same, or None where it is refused in a line."""
    try:
        return used(run)
    except StorageError as error:
        refusal = str(error)
    assert refusal.isprintable()
    return None


def found(run: Path) -> list[str]:
    """What `check` says, and of an intact run does not: problems and notes."""
    try:
        result = check_run(run)
    except StorageError as error:
        return [str(error)]
    return [*result.problems, *result.notes]
