"""Runs and texts that an analysis opens, and what its result says about them. Imports nothing heavy."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from lm.console.measured import Measured, MeasuredText
from lm.console.options import given
from lm.errors import ConfigError, DataError, StorageError, require
from lm.parallel.group import ALONE, Group

if TYPE_CHECKING:
    from lm.language.evaluate import Text
    from lm.language.trained import TrainedLm
    from lm.language.windows import Ids

T = TypeVar("T")


def _one_choice(context: typer.Context, value: T) -> T:
    """Typer callback of both options: reject --checkpoint with --over-training, in either order."""
    both = len(given(context, "checkpoint", "over_training")) == 2
    require(not both, "--checkpoint: has no effect with --over-training; leave out one of the two")
    return value


OneCheckpoint = Annotated[
    str,
    typer.Option(
        "--checkpoint",
        metavar="WHICH",
        help="best, last, average-best (of train.keep_best) or step-N; not with --over-training.",
        callback=_one_choice,
    ),
]
OverTraining = Annotated[
    bool,
    typer.Option(
        "--over-training", help="Analyse every stored checkpoint of the runs.", callback=_one_choice
    ),
]


@dataclass(frozen=True)
class Opened:
    """A model at a checkpoint of a run, its name in results, and the fingerprint of its weights."""

    run: Path
    name: str
    checkpoint: str
    fingerprint: str | None  # see CheckpointStore.fingerprint
    trained: "TrainedLm"


OpenedText = tuple[Opened, "Text"]  # a model, and a text in its tokens


def opened_with_text(
    runs: Sequence[Path],
    data: str | None,
    limit: int | None,
    checkpoint: str,
    every: bool = False,
    group: Group = ALONE,
) -> Iterator[OpenedText]:
    """Yield one checkpoint of each run, or ``every`` stored one, with the text to analyse.

    WorkerError where they differ among the processes of a group.
    """
    for opened in opened_models(runs, checkpoint, every):
        trained = replace(opened.trained, group=group)
        text = text_of(trained, data, limit)
        group.require_equal({"checkpoint": opened.fingerprint, "text": text.sha256})
        yield replace(opened, trained=trained), text


def opened_models(runs: Sequence[Path], checkpoint: str, every: bool) -> Iterator[Opened]:
    """Yield one checkpoint of each run, or ``every`` stored one."""
    from lm.language.trained import TrainedLm
    from lm.runs.evaluations import loaded

    for run in runs:
        for which in checkpoints_of(run) if every else [checkpoint]:
            trained, fingerprint = loaded(run, which, TrainedLm.load)
            yield Opened(run, f"{run} {which}" if every else str(run), which, fingerprint, trained)


def alike(steps: Iterator[OpenedText], *, texts: bool = True) -> Iterator[OpenedText]:
    """Pass on opened models, each compared with the first.

    DataError for another vocabulary than that of the first, and with ``texts`` ConfigError for other tokens.
    """
    import numpy as np

    first: tuple[str, Sequence[str], Text] | None = None
    for opened, text in steps:
        words = opened.trained.codec.vocabulary.tokens
        first = first or (opened.name, words, text)
        name, first_words, first_text = first
        if words != first_words:
            raise DataError(
                f"the runs have different vocabularies, of {len(first_words):,} and {len(words):,} words, so"
                " their probabilities cannot be compared; train both on one corpus"
            )
        if texts and not np.array_equal(text.ids, first_text.ids):
            raise ConfigError(
                f"{name} and {opened.name} tokenize {text.source} differently; train both on one corpus"
                if text.source == first_text.source
                else f"{name} and {opened.name} have different test splits; name one text with --data"
            )
        yield opened, text


def checkpoints_of(run: Path) -> list[str]:
    """Names of all intact checkpoints of a run, the oldest first. Raises StorageError if there is none."""
    from lm.runs.checkpoint import CheckpointStore

    store = CheckpointStore.of(run)
    intact = [f"step-{report.step}" for report in reversed(store.verify_all()) if not report.problem]
    if not intact and store.latest() is None:  # it raises where all are damaged
        raise StorageError(f"{run}: no checkpoint yet; train the run first")
    return intact


def text_of(trained: "TrainedLm", data: str | None, limit: int | None) -> "Text":
    """The text to analyse: the given one, or the test split of the run."""
    from lm.language.evaluate import load_text, own_test

    return load_text(trained, data or own_test(trained), limit)


def measurement(opened: Opened, text: "Text | None", found: T) -> Measured[T]:
    """A finding in an opened model, on a text or without one."""
    data = MeasuredText(text.name, text.source, text.sha256) if text else None
    trained = opened.trained
    return Measured(opened.checkpoint, trained.config.train.seed, str(trained.device), found, data)


def measured(steps: Iterator[OpenedText], measure: "Callable[[TrainedLm, Ids], T]") -> dict[str, Measured[T]]:
    """Results of ``measure`` on each opened model and the token ids of its text, by name."""
    found = {}
    for opened, text in steps:
        with naming(opened):
            found[opened.name] = measurement(opened, text, measure(opened.trained, text.ids))
    return found


@contextmanager
def naming(opened: Opened) -> Iterator[None]:
    """Context manager: a ConfigError, as of a head that an analysis does not know, names the model."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{opened.name}: {error}") from None
