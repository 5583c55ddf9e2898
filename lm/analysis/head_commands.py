"""Commands of ``lm analyze`` that ask what a head lets through: gradients, words, directions."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from lm.analysis.opened import Measured, OverTraining, Runs, loaded_steps, opened_steps, report_runs
from lm.console.app import counting
from lm.console.options import Checkpoint, JsonFile
from lm.language.options import Data, Limit, spare_texts

if TYPE_CHECKING:
    from lm.language.evaluate import Text
    from lm.language.trained import TrainedLm

T = TypeVar("T")


def gradient(
    runs: Runs,
    data: Data = None,
    limit: Limit = 1000,
    sample: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of tokens whose shares are measured.")
    ] = 50,
    checkpoint: Checkpoint = "best",
    over_training: OverTraining = False,
    json_file: JsonFile = None,
) -> None:
    """Gradients that the head passes back: share of the norm, ranks, and the change that follows.

    The first --limit tokens are one batch. Shares take seconds a token with a large head.

    Example: lm analyze gradient runs/ptb_small_softmax runs/ptb_small_mos --limit 1000 --sample 50
    """
    spare_texts(json_file, runs, data)
    from lm.analysis.gradient import gradient_tables, gradients_of_run

    steps = opened_steps(runs, data, limit, checkpoint, over_training)
    results = _measured("differentiating", steps, partial(gradients_of_run, sample=sample))
    report_runs(json_file, results, gradient_tables)


def geometry(
    runs: Runs,
    data: Data = None,
    limit: Limit = 5000,
    checkpoint: Checkpoint = "best",
    over_training: OverTraining = False,
    json_file: JsonFile = None,
) -> None:
    """Anisotropy and effective rank of states, contexts and output matrix.

    Example: lm analyze geometry runs/ptb_small_softmax runs/ptb_small_mos --over-training
    """
    spare_texts(json_file, runs, data)
    from lm.analysis.geometry import geometry_of_run, geometry_tables

    results = {
        name: Measured.of(trained, text, which, geometry_of_run(trained, text.ids))
        for name, which, trained, text in opened_steps(runs, data, limit, checkpoint, over_training)
    }
    report_runs(json_file, results, geometry_tables)


def histories(
    runs: Runs,
    data: Data = None,
    rows: Annotated[int, typer.Option("--histories", min=2, help="Number of histories.")] = 300,
    futures: Annotated[int, typer.Option(min=1, help="Number of futures of 1 to 4 tokens.")] = 16,
    checkpoint: Checkpoint = "best",
    over_training: OverTraining = False,
    json_file: JsonFile = None,
) -> None:
    """Rank of the matrix of histories by futures: what a model's past can say of its future.

    Example: lm analyze histories runs/ptb_small_softmax runs/ptb_small_mos
    """
    spare_texts(json_file, runs, data)
    from lm.analysis.geometry import histories_of_run, history_tables

    steps = opened_steps(runs, data, None, checkpoint, over_training)
    measure = partial(histories_of_run, histories=rows, futures=futures)
    report_runs(json_file, _measured("factorising", steps, measure), history_tables)


def unargmaxable(
    runs: Runs,
    checkpoint: Checkpoint = "best",
    over_training: OverTraining = False,
    json_file: JsonFile = None,
) -> None:
    """Words that no context can make the most probable one, by linear programs.

    Example: lm analyze unargmaxable runs/ptb_small_softmax runs/ptb_small_mos
    """
    spare_texts(json_file, runs, None)
    from lm.analysis.unargmaxable import unargmaxable_of_run, unargmaxable_tables

    results = {}
    with counting("searching") as progress:
        for name, which, trained in loaded_steps(runs, checkpoint, over_training):
            results[name] = Measured.of(trained, None, which, unargmaxable_of_run(trained, progress))
    report_runs(json_file, results, unargmaxable_tables)


def _measured(
    doing: str, steps: "Iterator[tuple[str, str, TrainedLm, Text]]", measure: Callable[..., T]
) -> dict[str, Measured[T]]:
    """Measurements of each checkpoint by its name, with progress."""
    results = {}
    with counting(doing) as progress:
        for name, which, trained, text in steps:
            found = measure(trained, text.ids, progress=progress)
            results[name] = Measured.of(trained, text, which, found)
    return results
