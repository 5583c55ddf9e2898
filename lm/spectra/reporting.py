"""Report of the ranks of runs, which both command lines print: a table, and a figure of the spectra."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from lm.console.measured import Measured, figures_folder, report_runs
from lm.disk.storage import make_folder
from lm.launched import leads
from lm.spectra.figure import draw_spectra
from lm.spectra.run_rank import RunRank, rank_tables
from lm.spectra.spectrum import RankResult


def report_ranks(
    runs: Sequence[Path], results: Mapping[str, Measured[RunRank]], out: Path | None, json_file: Path | None
) -> None:
    """Draw the stored spectra of runs into ``out``, write the ranks to ``json_file``, and print them."""
    folder = figures_folder(out, runs)
    figures = [folder / "rank.png", folder / "rank.svg"]
    if leads():
        make_folder(folder)
        spectra = {name: RankResult.load(Path(one.found.spectrum or "")) for name, one in results.items()}
        draw_spectra(spectra, figures)
    note = f"singular values: {figures[0]}, {figures[1]} and RUN/analysis/*.npz"
    report_runs(json_file, results, rank_tables, figures, note)
