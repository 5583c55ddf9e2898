"""Figure 1 of Yang et al. (2018): how the singular values of log-probability matrices are distributed."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lm.analysis.spectrum import RankResult
from lm.errors import ConfigError, DataError
from lm.storage import shown, write_atomic

FORMATS = (".png", ".svg")


def draw_spectra(spectra: Mapping[str, RankResult], paths: Sequence[Path]) -> None:
    """Draw, for every run by name, the percentage of singular values below x · σ_max, with log x.

    Dotted lines are thresholds: left of its own, a curve is rounding error, and the height at which it
    crosses it is the percentage that the rank lacks. The format is that of the suffix, PNG or SVG; the same
    spectra give the same bytes.

    Raises:
        ConfigError: a suffix of another format.
        DataError: there is nothing to draw.
        StorageError: a file cannot be written.
    """
    for path in paths:
        if path.suffix not in FORMATS:
            raise ConfigError(f"{shown(path)}: pictures end in {' or '.join(FORMATS)}")
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "highrank", "svg.fonttype": "path"}):
        if not any(result.rank for result in spectra.values()):
            raise DataError("every singular value is zero: there is no spectrum to draw")
        figure = Figure(figsize=(6.4, 4.4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot(xscale="log")
        for index, (name, result) in enumerate(spectra.items()):
            shares, percentages = curve(result)
            colour = f"C{index % 10}"
            axes.step(shares, percentages, where="pre", color=colour, label=f"{name}: rank {result.rank:,}")
            threshold = result.thresholds["roundoff_float64"] / (float(result.singular_values[0]) or 1.0)
            axes.axvline(threshold, color=colour, linestyle=":", linewidth=1)
        axes.set(xlabel="singular value / largest singular value", ylabel="singular values below (%)")
        axes.set_ylim(-2, 102)
        axes.grid(alpha=0.3)
        for text in axes.legend().get_texts():
            text.set_parse_math(False)  # a name may have dollar signs
        for path in paths:
            content = io.BytesIO()
            metadata = {"Date": None} if path.suffix == ".svg" else {}
            figure.savefig(content, format=path.suffix[1:], dpi=150, metadata=metadata)
            write_atomic(path, content.getvalue())


def curve(result: RankResult) -> tuple[np.ndarray, np.ndarray]:
    """The positive singular values over the largest, ascending, and what percentage of all is below each."""
    ascending = result.singular_values[::-1]
    percentages = 100.0 * np.searchsorted(ascending, ascending) / len(ascending)
    positive = ascending > 0
    return ascending[positive] / max(float(ascending[-1]), np.finfo(np.float64).tiny), percentages[positive]
