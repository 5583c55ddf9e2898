"""How a sweep of :mod:`lm.analysis.bottleneck` is shown: KL and measured rank against E, in two panels."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm.analysis.bottleneck import WIDE
from lm.analysis.pictures import save_figure
from lm.console import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

# Okabe and Ito's colours, which the colour-blind tell apart; the hollow markers of heads that coincide nest.
STYLES: dict[str, dict[str, Any]] = {
    "softmax": {"color": "#0072B2", "marker": "o", "markersize": 11, "fillstyle": "none", "linewidth": 2.5},
    "sigsoftmax": {"color": "#E69F00", "marker": "^", "markersize": 6, "linestyle": (0, (5, 2))},
    "sigmoid": {"color": "#F0E442", "marker": "v", "markersize": 6},
    "relu": {"color": "#000000", "marker": "x", "markersize": 6},
    "moc": {"color": "#56B4E9", "marker": "s", "markersize": 5, "linestyle": (0, (1, 1.5))},
    "mos": {"color": "#D55E00", "marker": "D", "markersize": 7, "fillstyle": "none", "linewidth": 2.5},
    "moss": {"color": "#009E73", "marker": "*", "markersize": 7, "linestyle": (0, (5, 2))},
    WIDE: {"color": "#777777", "linestyle": (0, (1, 1)), "linewidth": 1.3},
}
_GUIDE: dict[str, Any] = {"color": "#444444", "linewidth": 1.0, "linestyle": "--", "zorder": 1}
_NOTE: dict[str, Any] = {"fontsize": 9, "color": "#444444"}


def series(result: Mapping[str, Any]) -> dict[tuple[str, int], dict[int, list[Mapping[str, Any]]]]:
    """The rows by (head, K) and E, in the order of the sweep; one row for each seed."""
    sorted_rows: dict[tuple[str, int], dict[int, list[Mapping[str, Any]]]] = {}
    for row in result["rows"]:
        sorted_rows.setdefault((row["head"], row["components"]), {}).setdefault(row["size"], []).append(row)
    return sorted_rows


def label(head: str, components: int) -> str:
    """What tables and pictures call a head."""
    name = {"moc": "MoC", "mos": "MoS", "moss": "MoSS"}.get(head)
    return f"{name} K = {components}" if name else head


def bottleneck_tables(result: Mapping[str, Any]) -> list["Table | str"]:
    """KL and measured rank by E and head, means over the seeds, and what they mean."""
    settings, sorted_rows = result["settings"], series(result)
    tables: list[Table | str] = []
    for title, measure in (("KL(truth ‖ model), nats", "kl"), ("Measured rank", "rank")):
        rows = [
            {"E": size, "parameters": _mean(next(iter(sorted_rows.values()))[size], "parameters")}
            | {label(*name): _mean(by_size[size], measure) for name, by_size in sorted_rows.items()}
            for size in settings["embedding_sizes"]
        ]
        tables.append(table(title, rows))
    entropy = math.fsum(truth["entropy"] for truth in result["truth"]) / len(result["truth"])
    late = max(row["late_gain"] for row in result["rows"])
    tables.append(
        f"language: {settings['contexts']:,} contexts × {settings['vocab']:,} words, rank {settings['rank']},"
        f" entropy {entropy:.3f} nats; seeds {', '.join(map(str, settings['seeds']))}"
    )
    tables.append(f"the last tenth of training gained {late:.4f} nats at most")
    if wide := sorted_rows.get((WIDE, 1)):
        sizes = ", ".join(f"{rows[0]['embedding_size']} for {size}" for size, rows in wide.items())
        tables.append(f"{WIDE}: at most the same parameters, spent on a larger E of its own ({sizes})")
    return tables


def _mean(rows: Sequence[Mapping[str, Any]], measure: str) -> float | int:
    mean = math.fsum(row[measure] for row in rows) / len(rows)
    return mean if measure == "kl" else round(mean)


def draw(result: Mapping[str, Any], paths: Sequence[Path]) -> None:
    """Draw a result of :func:`lm.analysis.bottleneck.bottleneck` as PNG or SVG, by the suffix of each path.

    Points are means over the seeds, bars their range; the thin dotted line is the softmax that may choose its
    own E, drawn at the E whose parameters it has. The same result gives the same bytes.

    Raises:
        ConfigError: a suffix of another format.
        StorageError: a file cannot be written.
    """
    style = {"font.size": 11, "text.parse_math": False}
    save_figure(paths, partial(_draw, result), size=(10.0, 4.9), style=style)


def _draw(result: Mapping[str, Any], figure: "Figure") -> None:
    left, right = figure.subplots(1, 2)
    _plot(left, result, "kl", "KL(truth ‖ model), nats", [*STYLES])
    _plot(right, result, "rank", "rank of the log-probability matrix", [*STYLES][:-1])
    _guides(right, result["settings"])
    left.set_title("How far the model stays from the truth", fontsize=11)
    right.set_title("What rank it reaches", fontsize=11)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=min(6, len(labels)), frameon=False, fontsize=10
    )


def _plot(axes: "Axes", result: Mapping[str, Any], measure: str, title: str, heads: Sequence[str]) -> None:
    """A line for each head and K."""
    for (head, components), by_size in series(result).items():
        if head not in heads:
            continue
        sizes = sorted(by_size)
        values = [[row[measure] for row in by_size[size]] for size in sizes]
        means = [sum(some) / len(some) for some in values]
        style = {"linewidth": 1.8, "alpha": _strength(components, result["settings"])} | STYLES[head]
        if head == WIDE:
            axes.plot(sizes, means, label="wide softmax", zorder=2, **style)
            continue
        axes.plot(sizes, means, label=label(head, components), zorder=3, **style)
        if any(len(some) > 1 for some in values):
            low, high = [min(some) for some in values], [max(some) for some in values]
            axes.vlines(sizes, low, high, color=style["color"], linewidth=1)
    sizes = result["settings"]["embedding_sizes"]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    axes.set(xlabel="context size E of the head", ylabel=title)
    axes.grid(alpha=0.25)


def _strength(components: int, settings: Mapping[str, Any]) -> float:
    """How opaque a line is: the more components, the more."""
    several = sorted(settings["components"])
    return 0.4 + 0.6 * (several.index(components) + 1) / len(several) if components > 1 else 1.0


def _guides(axes: "Axes", settings: Mapping[str, Any]) -> None:
    """The wall E + 2, the rank of the language, and the most that the matrix can have."""
    sizes = sorted(settings["embedding_sizes"])
    most = min(settings["contexts"], settings["vocab"])
    axes.plot(sizes, [min(size + 2, most) for size in sizes], **_GUIDE)
    axes.annotate("E + 2", (sizes[0], sizes[0] + 2), (4, -20), textcoords="offset points", **_NOTE)
    lines = {settings["rank"]: f"rank of the language: {settings['rank']}"}
    if most > settings["rank"]:
        lines[most] = f"full rank: {most}"
    for rank, text in lines.items():
        axes.axhline(rank, **_GUIDE)
        axes.annotate(text, (sizes[0], rank), (0, -12), textcoords="offset points", **_NOTE)
    ticks = sorted({2**power for power in range(1, most.bit_length())} | {settings["rank"], most})
    ticks = [tick for tick in ticks if tick in lines or all(abs(tick / line - 1) > 0.25 for line in lines)]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
