"""Ranks of runs in both command lines: measured by several processes, reported as a table and a figure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lm.console.measured import report_runs
from lm.console.output import counting
from lm.disk.storage import make_folder
from lm.launched import leads
from lm.parallel.group import process_group
from lm.parallel.slices import joined
from lm.runs.evaluations import require_measurable
from lm.runs.measured import Measured, MeasuredText
from lm.spectra.figure import draw_spectra
from lm.spectra.run_rank import RunRank, rank_tables
from lm.spectra.spectrum import KEPT, RankResult
from lm.steps import OnProgress

_MINUTES = 7 * 24 * 60.0  # a process with short runs waits for one that factorises a long text for hours


def shared_ranks(
    runs: Sequence[Path], measure: Callable[[Sequence[Path], OnProgress], Iterator[Measured[RunRank]]]
) -> dict[str, Measured[RunRank]]:
    """Ranks by run. ``measure`` yields those of some runs; the processes of a group share the runs.

    Raises StorageError first where a result could not be kept.
    """
    for run in filter(Path.is_dir, runs):  # opening says what else is wrong
        require_measurable(run, KEPT)
    with counting("factorising") as progress, process_group(_MINUTES) as group:

        def rows(part: range) -> Iterator[dict[str, Any]]:
            yield from map(asdict, measure([runs[index] for index in part], progress))

        return dict(zip(map(str, runs), map(_from_json, joined(group, len(runs), rows)), strict=True))


def report_ranks(
    results: Mapping[str, Measured[RunRank]], figures: Sequence[Path], json_file: Path | None
) -> None:
    """Draw the stored spectra of runs to ``figures``, write the ranks to ``json_file``, and print them."""
    if leads():
        make_folder(figures[0].parent)
        spectra = {name: RankResult.load(Path(one.found.spectrum or "")) for name, one in results.items()}
        draw_spectra(spectra, figures)
    note = f"singular values: {', '.join(map(str, figures))} and RUN/{KEPT}/*.npz"
    report_runs(json_file, results, rank_tables, figures, note)


def _from_json(row: dict[str, Any]) -> Measured[RunRank]:
    """A measurement of a rank from its nested JSON."""
    return Measured(**row | {"found": RunRank(**row["found"]), "data": MeasuredText(**row["data"])})
