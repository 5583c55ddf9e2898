"""Tables and figures of :mod:`lm.studies.bottleneck`: KL and measured rank against E and K."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm.console.pictures import save_figure
from lm.console.tables import Table
from lm.heads.registry import HEADS
from lm.studies.bottleneck import WIDE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDE_STYLE = {"color": "#777777", "linestyle": (0, (1, 1)), "linewidth": 1.3}
_TITLES = {"kl": "KL(truth ‖ model), nats", "rank": "Measured rank"}
_AXES = _TITLES | {"rank": "rank of the log-probability matrix"}
_GUIDE: dict[str, Any] = {"color": "#444444", "linewidth": 1.0, "linestyle": "--", "zorder": 1}
_NOTE: dict[str, Any] = {"fontsize": 9, "color": "#444444"}

PointRows = list[Mapping[str, Any]]  # of one model, one per seed
_Line = tuple[str, Mapping[int, PointRows], dict[str, Any]]  # head, rows by place on the x axis, style


@dataclass(frozen=True)
class Name:
    """Name of a line or column. ``components`` is None in the sweep of K."""

    head: str
    scale: float
    components: int | None = None

    @property
    def is_mixture(self) -> bool:
        """True if the head has components."""
        return self.head != WIDE and HEADS[self.head].is_mixture

    def __str__(self) -> str:
        """Label in tables and figures."""
        if not self.is_mixture:
            return self.head
        parts = f"{HEADS[self.head].label} ×{self.scale:g}"
        return parts if self.components is None else f"{parts} K = {self.components}"


def series(result: Mapping[str, Any]) -> dict[Name, dict[int, PointRows]]:
    """Rows of the sweep of E, by name and E."""
    settings = result["settings"]
    found: dict[Name, dict[int, PointRows]] = {}
    for row in result["rows"]:
        if row["size"] in settings["embedding_sizes"] and _swept(row, settings["components"]):
            name = Name(row["head"], row["context_scale"], row["components"])
            found.setdefault(name, {}).setdefault(row["size"], []).append(row)
    return found


def component_series(result: Mapping[str, Any]) -> dict[Name, dict[int, PointRows]]:
    """Rows of the sweep of K, by name and K. A head without components has the same rows at every K."""
    swept = result["swept_components"]
    found: dict[Name, dict[int, PointRows]] = {}
    for row in result["rows"]:
        if row["size"] == result["settings"]["sweep_size"] and _swept(row, swept):
            for components in [row["components"]] if HEADS[row["kind"]].is_mixture else swept:
                name = Name(row["head"], row["context_scale"])
                found.setdefault(name, {}).setdefault(components, []).append(row)
    return found


def _swept(row: Mapping[str, Any], components: Sequence[int]) -> bool:
    return row["components"] in components or not HEADS[row["kind"]].is_mixture


def bottleneck_tables(result: Mapping[str, Any]) -> list[Table | str]:
    """Tables of KL and measured rank by E and head, and by K and head, means over seeds, and notes."""
    settings, by_size, by_components = result["settings"], series(result), component_series(result)
    against_size = {str(name): rows for name, rows in by_size.items()}
    against_components = {str(name): rows for name, rows in by_components.items()}
    tables: list[Table | str] = [
        *_tables("E", settings["embedding_sizes"], against_size, ""),
        *_tables("K", result["swept_components"], against_components, f" at E = {settings['sweep_size']}"),
    ]
    entropy = math.fsum(truth["entropy"] for truth in result["truth"]) / len(result["truth"])
    late = max(row["late_gain"] for row in result["rows"])
    tables.append(
        f"language: {settings['contexts']:,} contexts × {settings['vocab']:,} words, rank {settings['rank']},"
        f" entropy {entropy:.3f} nats; seeds {', '.join(map(str, settings['seeds']))}"
    )
    tables.append(f"the last tenth of training gained at most {late:.4f} nats")
    updates = {
        row["context_scale"]: f"{row['steps']:,}" for row in result["rows"] if HEADS[row["kind"]].is_mixture
    }
    if updates:
        tables.append(
            "contexts of mixtures are multiplied by a factor (papers: 1); updates: "
            + ", ".join(f"{count} at ×{scale:g}" for scale, count in updates.items())
        )
    if wide := by_size.get(Name(WIDE, 1.0, 1)):
        sizes = ", ".join(f"{rows[0]['embedding_size']} for {size}" for size, rows in wide.items())
        tables.append(f"{WIDE}: at most the same number of parameters, with a larger E ({sizes})")
    left_out = [k for k in settings["component_sweep"] if k not in result["swept_components"]]
    if left_out and any(HEADS[kind].is_mixture for kind in settings["heads"]):
        tables.append(
            f"K = {', '.join(map(str, left_out))} omitted: at E = {settings['sweep_size']} more parameters"
            " than the others at any H; raise --hidden-size"
        )
    return tables


def _tables(
    key: str, values: Sequence[int], columns: Mapping[str, Mapping[int, PointRows]], where: str
) -> Iterator[Table]:
    """Yield a table of KL and one of rank, or none without columns.

    Each has a row per value that any head allows, and an empty cell where a head does not allow the value.
    """
    for measure, title in _TITLES.items() if columns else ():
        rows = []
        for value in values:
            cells = {name: by_value[value] for name, by_value in columns.items() if value in by_value}
            if cells:
                parameters = _mean(next(iter(cells.values())), "parameters")
                means = {name: _mean(found, measure) for name, found in cells.items()}
                rows.append({key: value, "parameters": parameters} | dict.fromkeys(columns) | means)
        yield Table(title + where, rows)


def _mean(rows: PointRows, measure: str) -> float | int:
    mean = math.fsum(row[measure] for row in rows) / len(rows)
    return mean if measure == "kl" else round(mean)


def draw_bottleneck(result: Mapping[str, Any], paths: Sequence[Path]) -> None:
    """Draw a result of :func:`lm.studies.bottleneck.bottleneck` as PNG or SVG, by the suffix of each path.

    Points are means over the seeds, and bars their range. The thin dotted line is the wide softmax, drawn at
    the E of the models with equal parameters. The lower panels show the sweep of K, where heads without
    components are level. The same result gives the same bytes.

    Raises the errors of :func:`lm.console.pictures.save_figure`.
    """
    style = {"font.size": 11}
    rows = 2 if component_series(result) else 1
    save_figure(paths, partial(_draw, result), size=(10.0, 0.7 + 4.2 * rows), style=style)


def _draw(result: Mapping[str, Any], figure: "Figure") -> None:
    settings, by_size, by_components = result["settings"], series(result), component_series(result)
    panels = figure.subplots(2 if by_components else 1, 2, squeeze=False)
    several = sorted(settings["components"])
    lines: list[_Line] = []
    for name, rows in by_size.items():
        shown = str(name if len(several) > 1 else replace(name, components=None))
        if len(settings["steps"]) > 1 and name.is_mixture:
            shown += f", {next(iter(rows.values()))[0]['steps']:,} updates"
        share = (several.index(name.components) + 1) / len(several) if name.is_mixture else 1.0
        style = {"label": shown, "alpha": 0.4 + 0.6 * share}  # more opaque for larger K
        lines.append((name.head, rows, style | _scale_style(name, settings)))
    mixtures = any(name.is_mixture for name in by_size)
    where = f" (K = {several[0]})" if len(several) == 1 and mixtures else ""
    _draw_sweep(panels[0], lines, "context size E of the head", where)
    _draw_guides(panels[0, 1], {size: size + 2 for size in settings["embedding_sizes"]}, settings)
    panels[0, 0].set_yscale("log")
    from matplotlib.ticker import LogLocator

    panels[0, 0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panels[0, 0].yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panels[0, 0].minorticks_off()
    if by_components:
        size = settings["sweep_size"]
        lines = [
            (name.head, rows, _scale_style(name, settings) if name.is_mixture else {"marker": ""})
            for name, rows in by_components.items()
        ]
        _draw_sweep(panels[1], lines, "components K of a mixture", f" (E = {size})")
        _draw_guides(panels[1, 1], dict.fromkeys(result["swept_components"], size + 2), settings)
        panels[1, 0].set_ylim(bottom=0)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    columns = 6 if len(settings["steps"]) == 1 else 4  # names with updates are long
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=min(columns, len(labels)),
        frameon=False,
        fontsize=10,
    )


def _scale_style(name: Name, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Thin dotted style for factors on the contexts other than the first."""
    if not name.is_mixture or name.scale == settings["context_scale"][0]:
        return {}
    return {"linestyle": (0, (1, 2)), "linewidth": 1.2}


def _draw_sweep(panels: "Sequence[Axes]", lines: Sequence[_Line], over: str, where: str) -> None:
    """Draw KL in the left panel and rank in the right, with a line for each head and K."""
    titles = ("How far the model stays from the truth", "What rank it reaches")
    for axes, measure, title in zip(panels, _AXES, titles, strict=True):
        for head, rows, style in lines:
            if head == WIDE and measure == "rank":
                continue  # its E differs from its place
            own = _WIDE_STYLE if head == WIDE else HEADS[head].line_style
            _draw_line(axes, rows, measure, {"linewidth": 1.8, **own, **style})
        places = sorted({place for _, rows, _ in lines for place in rows})
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [str(place) for place in places])
        axes.minorticks_off()
        axes.set(xlabel=over, ylabel=_AXES[measure])
        axes.set_title(title + where, fontsize=11)
        axes.grid(alpha=0.25)


def _draw_line(axes: "Axes", by_place: Mapping[int, PointRows], measure: str, style: dict[str, Any]) -> None:
    """Draw the mean over the seeds at every E or K, and their range."""
    places = sorted(by_place)
    values = [[row[measure] for row in by_place[place]] for place in places]
    axes.plot(places, [math.fsum(some) / len(some) for some in values], zorder=3, **style)
    if any(len(some) > 1 for some in values):
        low, high = [min(some) for some in values], [max(some) for some in values]
        axes.vlines(places, low, high, color=style["color"], linewidth=1)


def _draw_guides(axes: "Axes", walls: Mapping[int, int], settings: Mapping[str, Any]) -> None:
    """Draw the bound E + 2 by place, the rank of the language, and the full rank of the matrix."""
    places = sorted(walls)
    first, side, shift = (places[0], "left", 4) if len(set(walls.values())) > 1 else (places[-1], "right", -4)
    note = _NOTE | {"textcoords": "offset points", "ha": side}
    most = min(settings["contexts"], settings["vocab"])
    axes.plot(places, [min(walls[place], most) for place in places], **_GUIDE)
    axes.annotate("E + 2", (first, min(walls[first], most)), (shift, -20), **note)
    lines = {settings["rank"]: f"rank of the language: {settings['rank']}"}
    if most > settings["rank"]:
        lines[most] = f"full rank: {most}"
    for rank, text in lines.items():
        axes.axhline(rank, **_GUIDE)
        axes.annotate(text, (first, rank), (0, -12), **note)
    ticks = sorted({2**power for power in range(1, most.bit_length())} | {settings["rank"], most})
    ticks = [tick for tick in ticks if tick in lines or all(abs(tick / line - 1) > 0.25 for line in lines)]
    axes.set_yscale("log")
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
