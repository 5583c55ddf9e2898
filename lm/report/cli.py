"""The commands ``compare`` and ``report`` of both command-line programs."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lm.console.options import RESAMPLES, JsonFile, output_file, run_folders
from lm.console.output import show, write_result
from lm.disk.storage import write_atomic
from lm.errors import DataError, visible
from lm.runs.evaluations import evaluation_at
from lm.runs.inputs import CONFIG
from lm.runs.outputs import is_report

if TYPE_CHECKING:
    from lm.report.page_parts import ReportFamily

COMPARE = (
    "Show evaluated runs side by side, with paired bootstrap p-values against the first.\n\n"
    "Instead of a run, RUN/evaluation/NAME.json names one of its evaluations, such as that of an ensemble."
)
REPORT = (
    "Write a report of evaluated runs: one HTML file that says which run is better, by how much, and if that "
    "may be noise.\n\nThe file needs no network and prints well. Equal runs give equal bytes."
)
EvaluatedRuns = Annotated[list[Path], run_folders("Evaluated runs; the first is the baseline.")]
EvaluationName = Annotated[
    str | None,
    typer.Option(help="File name of the evaluation in RUN/evaluation, if the runs share several."),
]
ResampleCount = Annotated[int, typer.Option(metavar="N", help="Bootstrap resamples.")]


def add_compare_and_report(app: typer.Typer, example: str, module: str) -> None:
    """Add the commands ``compare`` and ``report`` to a program.

    ``example`` has the program's name and two runs. ``module`` has the family's part as ``FAMILY``.
    """
    program, runs_named = example.split(" ", 1)

    @app.command(help=f"{COMPARE}\n\nExample: {program} compare {runs_named}")
    def compare(
        runs: EvaluatedRuns,
        name: EvaluationName = None,
        resamples: ResampleCount = RESAMPLES,
        json_file: JsonFile = None,
    ) -> None:
        found, others = _runs_among(runs, files=True)
        family: ReportFamily = import_module(module).FAMILY
        result = family.compare(found, name, resamples)
        write_result(json_file, result)
        show(*family.tables(result), *others)

    @app.command(help=f"{REPORT}\n\nExample: {program} report {runs_named} --out report.html")
    def report(
        runs: EvaluatedRuns,
        out: Annotated[Path, output_file("File to write.", is_report, metavar="HTML")] = Path("report.html"),
        name: EvaluationName = None,
        resamples: ResampleCount = RESAMPLES,
    ) -> None:
        from lm.report.page import report_of

        found, others = _runs_among(runs)
        verdict, page = report_of(import_module(module).FAMILY, found, name, resamples)
        write_atomic(out, page)
        show(verdict.headline, *others, f"{out}: written; open it in a browser")


def _runs_among(paths: Sequence[Path], *, files: bool = False) -> tuple[list[Path], list[str]]:
    """The runs among paths, such as from a shell's ``runs/*``, and a note about other existing paths.

    With ``files``, those of evaluations count as runs. Raises DataError if no path is a run. A path that does
    not exist is kept for a later error with its name.
    """
    runs = [
        path
        for path in paths
        if (path / CONFIG).exists() or not path.exists() or (files and evaluation_at(path))
    ]
    others = ", ".join(visible(path) for path in paths if path not in runs)
    if not runs and (kept := [path for path in paths if evaluation_at(path)]):
        raise DataError(f"{visible(kept[0])}: an evaluation; name its run, and the evaluation with --name")
    if not runs:
        raise DataError(f"{others}: no run, which would be a folder with {CONFIG}; name at least one")
    return runs, [f"left out, being no runs: {others}"] if others else []
