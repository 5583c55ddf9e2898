"""Options of the commands that analyse runs, the folder of figures, and the output of results by run."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from lm.console.options import given, output_folder, run_folders
from lm.console.output import show, write_result
from lm.console.pictures import SUFFIXES
from lm.console.tables import Table
from lm.errors import require, visible
from lm.runs.measured import Measured, MeasuredRuns
from lm.runs.outputs import is_picture, require_earlier

T = TypeVar("T")

Runs = Annotated[list[Path], run_folders("Folders of runs; repeated ones count once.")]
Out = Annotated[
    Path | None,
    output_folder("Folder of figures; default: RUN/analysis for one run, ./analysis for several.", "--out"),
]


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

Sample = Annotated[
    int, typer.Option("--sample", min=1, metavar="N", help="Number of tokens whose shares are measured.")
]


def figure_files(name: str, out: Path | None, runs: Sequence[Path]) -> list[Path]:
    """The files NAME.png and NAME.svg for a figure of runs, in ``out`` or by default that of a single run.

    ConfigError if one exists and is no picture.
    """
    folder = out or (runs[0] / "analysis" if len(runs) == 1 else Path("analysis"))
    files = [folder / f"{name}{suffix}" for suffix in SUFFIXES]
    for file in files:
        require_earlier(file, is_picture)
    return files


def report_runs(
    json_file: Path | None,
    runs: Mapping[str, Measured[T]],
    tables: Callable[[Mapping[str, T]], Sequence[Table | str]],
    figures: Sequence[Path] = (),
    *notes: str,
) -> None:
    """Write the measurements of runs by name to ``json_file``, and print their tables and notes."""
    result = MeasuredRuns.of(runs, figures)
    write_result(json_file, result)
    show(*tables(result.found()), *_texts_warning(runs), *notes)


def _texts_warning(runs: Mapping[str, Measured[T]]) -> list[str]:
    """Warning about measurements of different tokens; [] if all tokens are equal, or none were read."""
    texts = {name: measured.data for name, measured in runs.items() if measured.data}
    if len({text.sha256 for text in texts.values()}) < 2:
        return []
    named = ", ".join(f"{visible(name)} {visible(text.source)}" for name, text in texts.items())
    return [f"warning: the runs read different texts, so that their numbers do not compare: {named}."]
