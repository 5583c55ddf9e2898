"""Tables of a search, and parallel coordinates as in Figures 5 and 6 of Melis et al. (2020)."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm.console.pictures import save_figure
from lm.console.tables import Table
from lm.errors import DataError
from lm.measures import perplexity
from lm.tuning.search import TrialRow, best_of, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEAR_BEST = 0.15  # share of a parameter's range that counts as near the best (Melis et al. 2020, App. B)
NEAR_COLOR, FAR_COLOR = "#D55E00", "#0072B2"  # from the colour-blind safe palette of Okabe and Ito


def search_tables(title: str, rows: Sequence[TrialRow], best: TrialRow | None) -> list[Table | str]:
    """Table of the trials, and a line about the best."""
    shown = [
        {
            "trial": row["trial"],
            "state": row["state"],
            "valid nll": row["nll"],
            "ppl": None if row["nll"] is None else perplexity(row["nll"]),
            "update": row["step"],
            **{
                key: value if isinstance(value, float) else value_text(value)
                for key, value in row["values"].items()
            },
            "reason": row["reason"],
        }
        for row in rows
    ]
    if best is None:
        return [Table(title, shown), "no finished trial"]
    return [Table(title, shown), f"best: trial {best['trial']}, {best['nll']:.4f} nats a token"]


def draw_trials(
    path: Path, title: str, space: Mapping[str, Mapping[str, Any]], rows: Sequence[TrialRow]
) -> None:
    """Draw every finished trial as a line through its values to its validation loss, PNG or SVG.

    Trials near the best, within 15 % of the axis in every parameter, are red. The best is thick. ``space``
    has the entries of ``search.json``.

    Raises:
        ConfigError: a suffix of another format.
        DataError: no finished trial.
        StorageError: the file cannot be written.
    """
    finished = [row for row in rows if row["state"] == "finished"]
    if not finished:
        raise DataError("no finished trial to draw; run the search first")
    width = 2.0 + 1.3 * (len(space) + 1)
    style = {"font.size": 9}
    save_figure([path], partial(_draw, title, space, finished), size=(width, 4.0), style=style)


def _draw(
    title: str, space: Mapping[str, Mapping[str, Any]], rows: Sequence[TrialRow], figure: "Figure"
) -> None:
    axes: Axes = figure.subplots()
    best = best_of(rows)
    places = {row["trial"]: [place(space[key], row["values"][key]) for key in space] for row in rows}
    low, high = min(row["nll"] for row in rows), max(row["nll"] for row in rows)
    near = (
        {row["trial"]: is_near(places[row["trial"]], places[best["trial"]]) for row in rows} if best else {}
    )
    for row in sorted(rows, key=lambda row: -row["nll"]):  # better trials on top
        end = (row["nll"] - low) / (high - low) if high > low else 0.5
        chosen = near[row["trial"]]
        axes.plot(
            [*places[row["trial"]], end],
            color=NEAR_COLOR if chosen else FAR_COLOR,
            alpha=1.0 if chosen else 0.3,
            linewidth=2.5 if row is best else 1.0,
            zorder=3 if chosen else 2,
        )
    for at, entry in enumerate([*space.values(), {"low": low, "high": high}]):
        axes.axvline(at, color="black", linewidth=0.8)
        for height, text in _ticks(entry):
            axes.annotate(
                text, (at, height), (3, 0), textcoords="offset points", va="center", fontsize=8, zorder=4
            )
    axes.set_xticks(range(len(space) + 1), [*space, "validation nll"], rotation=20, ha="right")
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_title(f"{title}: {len(rows)} finished trials", fontsize=10)


def place(entry: Mapping[str, Any], value: Any) -> float:
    """Position of a value on the axis of its parameter, 0 at the lower and 1 at the upper end."""
    if "choices" in entry:
        return _steps(entry["choices"]).get(json.dumps(value), 0.0)
    low, high = entry["low"], entry["high"]
    if entry.get("log"):
        low, high, value = math.log(low), math.log(high), math.log(value)
    return float((value - low) / (high - low))


def is_near(places: Sequence[float], best: Sequence[float]) -> bool:
    """True if a trial is near the best in every parameter."""
    return all(abs(one - other) <= NEAR_BEST for one, other in zip(places, best, strict=True))


def _steps(choices: Sequence[object]) -> dict[str, float]:
    """Evenly spaced positions of choices, by their JSON."""
    apart = max(1, len(choices) - 1)
    return {json.dumps(choice): at / apart for at, choice in enumerate(choices)}


def _ticks(entry: Mapping[str, Any]) -> list[tuple[float, str]]:
    if "choices" in entry:
        return [(height, text.strip('"')) for text, height in _steps(entry["choices"]).items()]
    return [(0.0, f"{entry['low']:.4g}"), (1.0, f"{entry['high']:.4g}")]
