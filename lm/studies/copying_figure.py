"""Tables and figures of :mod:`lm.studies.copying`: cross-entropy against the length of sequences."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from lm.console.pictures import save_figure
from lm.console.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# the colour-blind safe palette of Okabe and Ito
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#000000")


def copying_tables(result: Mapping[str, Any]) -> list[Table | str]:
    """Tables of cross-entropy and exact copies by length and cell, means over seeds, and model sizes.

    Beside the cross-entropy is that of a model that knows nothing of the sequence.
    """
    settings = result["settings"]
    tables: list[Table | str] = []
    for title, measure in (("Cross-entropy, nats a token", "test_nll"), ("Copied without error", "exact")):
        found = _series(result, measure)
        rows = [
            {"length": length} | {cell: fmean(values[length]) for cell, values in found.items()}
            for length in settings["lengths"]
        ]
        if measure == "test_nll":
            rows = [row | {"knowing nothing": _ignorance(settings["vocab"], row["length"])} for row in rows]
        tables.append(Table(f"{title} (test)", rows))
    sizes = {row["cell"]: (row["parameters"], row["hidden_size"]) for row in result["rows"]}
    models = "; ".join(f"{cell}: {count:,} parameters, H = {size}" for cell, (count, size) in sizes.items())
    rates = ", ".join(f"{rate:g}" for rate in settings["lrs"])
    tables.append(f"{models}; {settings['steps']:,} updates; rate: the best of {rates}")
    return tables


def draw_copying(result: Mapping[str, Any], paths: Sequence[Path]) -> None:
    """Draw cross-entropy against length, with a line per cell, as PNG or SVG by the suffix of each path.

    Points are means over the seeds, and bars their range. The same result gives the same bytes.

    Raises the errors of :func:`lm.console.pictures.save_figure`.
    """
    style = {"font.size": 11}
    save_figure(paths, partial(_draw, result), size=(6.5, 4.2), style=style)


def _draw(result: Mapping[str, Any], figure: "Figure") -> None:
    axes, lengths = figure.subplots(), result["settings"]["lengths"]
    for colour, (cell, by_length) in zip(_COLOURS, _series(result, "test_nll").items(), strict=False):
        means = [fmean(by_length[length]) for length in lengths]
        axes.plot(lengths, means, marker="o", color=colour, linewidth=1.8, label=cell)
        if any(len(values) > 1 for values in by_length.values()):
            low, high = ([pick(by_length[length]) for length in lengths] for pick in (min, max))
            axes.vlines(lengths, low, high, color=colour, linewidth=1)
    nothing = [_ignorance(result["settings"]["vocab"], length) for length in lengths]
    axes.plot(lengths, nothing, color="#444444", linestyle="--", linewidth=1.0, label="knowing nothing")
    axes.set(xlabel="length of the sequence", ylabel="cross-entropy, nats a token", xticks=lengths)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)


def _series(result: Mapping[str, Any], measure: str) -> dict[str, dict[int, list[float]]]:
    """Values of all seeds by cell and length."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in result["rows"]:
        found.setdefault(row["cell"], {}).setdefault(row["length"], []).append(row[measure])
    return found


def _ignorance(vocab: int, length: int) -> float:
    """Nats per token of a model without memory that knows the task and the end of the sequence."""
    return math.log(vocab) * length / (length + 1)
