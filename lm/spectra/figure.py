"""Figures of singular values of log-probability matrices, as in Yang et al. and Kanai et al. (2018)."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lm.console.pictures import save_figure
from lm.errors import DataError
from lm.spectra.spectrum import RankResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_spectra(spectra: Mapping[str, RankResult], paths: Sequence[Path]) -> None:
    """Draw, for every run by name, the % of singular values below x · σ_max, and all values by index.

    The first panel is Figure 1 of Yang et al., the second is Figures 1 and 2 of Kanai et al. Dotted lines are
    thresholds. A curve left of its threshold, or below it, is rounding error. It crosses the threshold at the
    percentage that the rank lacks, or at the rank. The suffix gives the format, PNG or SVG. The same spectra
    give the same bytes.

    Raises:
        ConfigError: a suffix of another format.
        DataError: there is nothing to draw.
        StorageError: a file cannot be written.
    """
    if not any(result.rank for result in spectra.values()):
        raise DataError("all singular values are zero, so there is no spectrum to draw; check the model")
    save_figure(paths, partial(_draw, spectra), size=(12, 4.4))


def _draw(spectra: Mapping[str, RankResult], figure: "Figure") -> None:
    below, by_index = figure.subplots(1, 2)
    for index, (name, result) in enumerate(spectra.items()):
        shares, percentages = curve(result)
        colour = f"C{index % 10}"
        below.step(shares, percentages, where="pre", color=colour, label=f"{name}: rank {result.rank:,}")
        by_index.plot(range(len(shares), 0, -1), shares, color=colour)
        threshold = result.thresholds["roundoff_float64"] / (float(result.singular_values[0]) or 1.0)
        below.axvline(threshold, color=colour, linestyle=":", linewidth=1)
        by_index.axhline(threshold, color=colour, linestyle=":", linewidth=1)
    below.plot([], [], color="grey", linestyle=":", linewidth=1, label="threshold of the rank")
    share = "singular value / largest singular value"
    below.set(xscale="log", xlabel=share, ylabel="singular values below (%)", ylim=(-2, 102))
    by_index.set(yscale="log", xlabel="index, largest first", ylabel=share)
    for axes in (below, by_index):
        axes.grid(alpha=0.3)
    below.legend()


def curve(result: RankResult) -> tuple[np.ndarray, np.ndarray]:
    """Positive singular values divided by the largest, ascending, and the percentage of all below each."""
    ascending = result.singular_values[::-1]
    percentages = 100.0 * np.searchsorted(ascending, ascending) / len(ascending)
    positive = ascending > 0
    return ascending[positive] / max(float(ascending[-1]), np.finfo(np.float64).tiny), percentages[positive]
