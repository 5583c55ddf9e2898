"""The commands ``dialog analyze …``: analyses of trained dialog models."""

import typer

from dialog.commands import FirstContexts, TestCorpus, splits_apart
from lm.console.app import Commands, counting, note
from lm.console.measured import Out, Runs
from lm.console.options import Checkpoint, JsonFile

analyze = typer.Typer(
    cls=Commands, help="Analyse trained dialog models: the rank of their predictions.", no_args_is_help=True
)


@analyze.command()
def rank(
    runs: Runs,
    data: TestCorpus = None,
    limit: FirstContexts = None,
    checkpoint: Checkpoint = "best",
    out: Out = None,
    json_file: JsonFile = None,
) -> None:
    """Numerical rank of the log-probability matrix of runs, and their singular values in one figure.

    Rows are the tokens of true responses, columns the words. A large corpus takes minutes to hours, which
    --limit shortens. Singular values are stored in RUN/analysis, and reused while weights and text are
    unchanged.

    Example: dialog analyze rank runs/smalltalk_softmax runs/smalltalk_mos
    """
    splits = splits_apart(runs, [json_file], [data])
    from dialog.analysis import rank_of_run
    from lm.runs.inputs import prepared_anew
    from lm.spectra.reporting import report_ranks

    note(*() if data else prepared_anew(runs, [own.train for own in splits]))
    with counting("factorising") as progress:
        results = {str(run): rank_of_run(run, data, limit, checkpoint, progress) for run in runs}
    report_ranks(runs, results, out, json_file)
