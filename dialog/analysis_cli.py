"""The commands ``dialog analyze …``: analyses of trained dialog models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dialog.config import DataConfig, DialogConfig
from lm.console.app import Commands, counting, note
from lm.console.measured import Out, Runs
from lm.console.options import Checkpoint, JsonFile, nonempty
from lm.runs.outputs import require_apart

analyze = typer.Typer(
    cls=Commands, help="Analyse trained dialog models: the rank of their predictions.", no_args_is_help=True
)


def splits_of(runs: Sequence[Path]) -> list[DataConfig]:
    """The data of runs, with the paths of conversations that are in the run."""
    from dialog.corpora.own_data import in_run
    from lm.runs.inputs import config_of

    return [in_run(run, config_of(run, DialogConfig).config.data) for run in runs]


@analyze.command()
def rank(
    runs: Runs,
    data: Annotated[
        str | None,
        typer.Option(metavar="F", parser=nonempty, help="Corpus; default: the run's test split."),
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first N contexts.")] = None,
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
    splits = splits_of(runs)
    require_apart([json_file], [data, *(text for own in splits for text in (own.train, own.valid, own.test))])
    from dialog.analysis import rank_of_run
    from lm.runs.inputs import prepared_anew
    from lm.spectra.reporting import report_ranks

    note(*() if data else prepared_anew(runs, [own.train for own in splits]))
    with counting("factorising") as progress:
        results = {str(run): rank_of_run(run, data, limit, checkpoint, progress) for run in runs}
    report_ranks(runs, results, out, json_file)
