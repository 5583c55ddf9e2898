"""Commands of ``lm analyze`` that ask what a head lets through: gradients, words, directions."""

from functools import partial
from typing import Annotated

import typer

from lm.analysis.opened import measured, opened_with_text
from lm.console.measured import OneCheckpoint, OverTraining, Runs, Sample, report_runs
from lm.console.options import JsonFile
from lm.console.output import counting
from lm.language.options import Data, Limit, spare_texts
from lm.runs.measured import measurement
from lm.runs.opened import naming, opened_models, require_runs


def gradient(
    runs: Runs,
    data: Data = None,
    limit: Limit = 1000,
    sample: Sample = 50,
    checkpoint: OneCheckpoint = "best",
    over_training: OverTraining = False,
    json_file: JsonFile = None,
) -> None:
    """Gradients that a head passes back: share of their norm, ranks, and the change of predictions.

    The first --limit tokens are one batch. Shares take seconds per token with a large head.

    Example: lm analyze gradient runs/ptb_small_softmax runs/ptb_small_mos --limit 1000 --sample 50
    """
    spare_texts(json_file, runs, data)
    from lm.analysis.gradient import gradients_of_run
    from lm.spectra.gradient import gradient_tables

    steps = opened_with_text(runs, data, limit, checkpoint, over_training)
    with counting("differentiating") as progress:
        results = measured(steps, partial(gradients_of_run, sample=sample, progress=progress))
    report_runs(json_file, results, gradient_tables)


def geometry(
    runs: Runs,
    data: Data = None,
    limit: Limit = 5000,
    checkpoint: OneCheckpoint = "best",
    over_training: OverTraining = False,
    json_file: JsonFile = None,
) -> None:
    """Anisotropy and effective rank of states, contexts and output matrix.

    Example: lm analyze geometry runs/ptb_small_softmax runs/ptb_small_mos --over-training
    """
    spare_texts(json_file, runs, data)
    from lm.analysis.geometry import geometry_of_run, geometry_tables

    steps = opened_with_text(runs, data, limit, checkpoint, over_training)
    report_runs(json_file, measured(steps, geometry_of_run), geometry_tables)


def histories(
    runs: Runs,
    data: Data = None,
    rows: Annotated[int, typer.Option("--histories", min=2, help="Number of histories.")] = 300,
    futures: Annotated[int, typer.Option(min=1, help="Number of futures of 1 to 4 tokens.")] = 16,
    checkpoint: OneCheckpoint = "best",
    over_training: OverTraining = False,
    json_file: JsonFile = None,
) -> None:
    """Rank of the logits after histories (rows) and futures (columns); Golowich et al. 2025.

    Example: lm analyze histories runs/ptb_small_softmax runs/ptb_small_mos
    """
    spare_texts(json_file, runs, data)
    from lm.analysis.geometry import histories_of_run, history_tables

    steps = opened_with_text(runs, data, None, checkpoint, over_training)
    with counting("factorising") as progress:
        measure = partial(histories_of_run, histories=rows, futures=futures, progress=progress)
        results = measured(steps, measure)
    report_runs(json_file, results, history_tables)


def unargmaxable(
    runs: Runs,
    checkpoint: OneCheckpoint = "best",
    over_training: OverTraining = False,
    json_file: JsonFile = None,
) -> None:
    """Words that no context can make the most probable one, by linear programs.

    Example: lm analyze unargmaxable runs/ptb_small_softmax runs/ptb_small_mos
    """
    spare_texts(json_file, runs, None)
    from lm.analysis.unargmaxable import require_one_matrix, unargmaxable_of_run, unargmaxable_tables
    from lm.language.config import LmConfig
    from lm.language.trained import TrainedLm

    require_runs(runs, LmConfig, lambda _, config: require_one_matrix(config.head))
    results = {}
    with counting("searching") as progress:
        for opened in opened_models(runs, checkpoint, over_training, TrainedLm.load):
            with naming(opened):
                found = unargmaxable_of_run(opened.trained, progress)
            results[opened.name] = measurement(opened, None, found)
    report_runs(json_file, results, unargmaxable_tables)
