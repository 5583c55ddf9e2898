"""The commands ``dialog analyze …``: analyses of trained dialog models."""

from functools import partial

import typer

from dialog.commands import FirstContexts, TestCorpus, check_splits
from lm.console.app import Commands, in_processes
from lm.console.measured import OneCheckpoint, Out, OverTraining, Runs, Sample, figure_files, report_runs
from lm.console.options import Checkpoint, JsonFile, Processes
from lm.console.output import counting

analyze = typer.Typer(
    cls=Commands,
    help="Analyse trained dialog models: the rank of their predictions, and the gradients of their heads.",
    no_args_is_help=True,
)


@analyze.command()
def rank(
    runs: Runs,
    data: TestCorpus = None,
    limit: FirstContexts = None,
    checkpoint: Checkpoint = "best",
    out: Out = None,
    json_file: JsonFile = None,
    processes: Processes = 1,
) -> None:
    """Numerical rank of the log-probability matrix of runs, and their singular values in one figure.

    Rows are the tokens of true responses, columns the words. A large corpus takes minutes to hours, which
    --limit shortens. Singular values are stored in RUN/analysis, and reused while weights and text are
    unchanged. Several processes share the runs.

    Example: dialog analyze rank runs/smalltalk_softmax runs/smalltalk_mos
    """
    in_processes(processes)
    check_splits(runs, [json_file], data)
    from dialog.analysis import ranks_of_models, require_corpora
    from lm.spectra.rank_report import report_ranks, shared_ranks

    figures = figure_files("rank", out, runs)
    require_corpora(runs, data)  # of all processes
    measure = partial(ranks_of_models, data=data, limit=limit, checkpoint=checkpoint)
    report_ranks(shared_ranks(runs, measure), figures, json_file)


@analyze.command()
def gradient(
    runs: Runs,
    data: TestCorpus = None,
    limit: FirstContexts = 100,
    sample: Sample = 50,
    checkpoint: OneCheckpoint = "best",
    over_training: OverTraining = False,
    json_file: JsonFile = None,
) -> None:
    """Gradients that a head passes back: share of their norm, ranks, and the change of predictions.

    The tokens of the true responses to the first --limit contexts are one batch. Shares take seconds per
    token with a large head.

    Example: dialog analyze gradient runs/smalltalk_softmax runs/smalltalk_mos --limit 50 --sample 20
    """
    check_splits(runs, [json_file], data)
    from dialog.analysis import analysed_models, gradients_of_model
    from lm.spectra.gradient import gradient_tables

    with counting("differentiating") as progress:
        read = analysed_models(runs, data, limit, checkpoint, over_training)
        results = {one.opened.name: gradients_of_model(one, sample, progress) for one in read}
    report_runs(json_file, results, gradient_tables)
