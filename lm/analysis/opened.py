"""Language models and texts that an analysis opens. Imports nothing heavy."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from lm.errors import ConfigError, DataError
from lm.parallel.group import ALONE, Group
from lm.runs.measured import Measured, measurement
from lm.runs.opened import Opened, naming, opened_models, require_runs

if TYPE_CHECKING:
    from lm.language.config import LmConfig
    from lm.language.evaluate import Text
    from lm.language.trained import TrainedLm
    from lm.language.windows import Ids

T = TypeVar("T")
OpenedText: TypeAlias = "tuple[Opened[TrainedLm], Text]"  # a model, and a text in its tokens


def opened_with_text(
    runs: Sequence[Path],
    data: str | None,
    limit: int | None,
    checkpoint: str,
    every: bool = False,
    group: Group = ALONE,
    fits: "Callable[[LmConfig], object] | None" = None,
) -> Iterator[OpenedText]:
    """Yield one checkpoint of each run, or ``every`` stored one, with the text to analyse.

    StorageError if a path is no run, and DataError if a run has no test split and needs one, before any run
    is loaded. ConfigError of ``fits``, as of :func:`require_texts`. WorkerError where they differ among the
    processes of a group.
    """
    from lm.language.trained import TrainedLm

    require_texts(runs, data, fits)
    for opened in opened_models(runs, checkpoint, every, TrainedLm.load):
        trained = replace(opened.trained, group=group)
        with naming(opened, data):
            text = text_of(trained, data, limit)
        group.require_equal({"checkpoint": opened.fingerprint, "text": text.sha256})
        yield replace(opened, trained=trained), text


def require_texts(
    runs: Sequence[Path], data: str | None, fits: "Callable[[LmConfig], object] | None" = None
) -> None:
    """Raise StorageError for a path that is no run, DataError for a missing test split that is to be read.

    A ConfigError of ``fits`` for one of the configs is raised with the name of the run.
    """
    from lm.language.config import LmConfig
    from lm.language.evaluate import own_test

    def check(_: Path, config: LmConfig) -> None:
        if fits is not None:
            fits(config)
        if data is None:
            own_test(config)

    require_runs(runs, LmConfig, check)


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


def text_of(trained: "TrainedLm", data: str | None, limit: int | None) -> "Text":
    """The text to analyse: the given one, or the test split of the run."""
    from lm.language.evaluate import load_text, own_test

    return load_text(trained, data or own_test(trained.config), limit)


def measured(steps: Iterator[OpenedText], measure: "Callable[[TrainedLm, Ids], T]") -> dict[str, Measured[T]]:
    """Results of ``measure`` on each opened model and the token ids of its text, by name."""
    found = {}
    for opened, text in steps:
        with naming(opened):
            found[opened.name] = measurement(opened, text, measure(opened.trained, text.ids))
    return found
