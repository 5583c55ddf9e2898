"""Charts as coordinates of SVG elements, which the page's template draws.

Coordinates are texts with one decimal, so equal numbers give equal bytes on every machine.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lm.numbers import number

Point = tuple[float, float]
Tick = tuple[str, str]  # place on its axis, and label
_COLOURS = 8  # of the style sheet; further series begin again
_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 14, 12, 46  # margins of the plot
_ROW, _NARROW = 44, 440  # height of a row of intervals, and width of their chart


def colour_of(index: int) -> int:
    """Colour of the run with an index."""
    return index % _COLOURS


@dataclass(frozen=True)
class Series:
    """Points (x, y) of a line; ``marked`` is one of them. ``faint`` lines have no marks and no legend."""

    name: str
    points: Sequence[Point]
    colour: int
    marked: Point | None = None
    faint: bool = False


@dataclass(frozen=True)
class DrawnLine:
    """A drawn series: path, marks, and the place of the marked point."""

    name: str
    colour: int
    faint: bool
    path: str
    marks: Sequence[tuple[str, str]]
    marked: tuple[str, str] | None


@dataclass(frozen=True)
class LineChart:
    """A chart of lines with a logarithmic y axis."""

    kind: ClassVar[str] = "lines"
    title: str
    about: str
    x_label: str
    y_label: str
    lines: Sequence[DrawnLine]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    right: int = _WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = _HEIGHT - _BOTTOM


@dataclass(frozen=True)
class Bar:
    """A drawn interval: its row, its ends and its estimate."""

    name: str
    text: str
    colour: int
    y: str
    low: str
    high: str
    estimate: str


@dataclass(frozen=True)
class IntervalChart:
    """A chart of intervals, one a row, against a line at zero."""

    kind: ClassVar[str] = "intervals"
    title: str
    about: str
    bars: Sequence[Bar]
    ticks: Sequence[Tick]
    zero: str
    bottom: int
    height: int
    width: int = _NARROW


def line_chart(title: str, about: str, labels: tuple[str, str], series: Sequence[Series]) -> LineChart | None:
    """Chart of the finite positive points of series; None if no line has two points.

    ``labels`` name the x and the y axis.
    """
    kept = [
        (one, [point for point in one.points if math.isfinite(point[1]) and point[1] > 0]) for one in series
    ]
    shown = [(one, points) for one, points in kept if points]
    if not any(len(points) > 1 for _, points in shown):
        return None
    xs, ys = zip(*(point for _, points in shown for point in points), strict=True)
    end, low, high = max(xs), min(ys), max(ys)
    room = (high / low) ** 0.04 if high > low else 1.1
    low, high = low / room, min(high * room, sys.float_info.max)

    def place(point: Point) -> tuple[str, str]:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * point[0] / (end or 1)
        share = math.log(point[1] / low) / math.log(high / low)
        return _text(x), _text(_HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * share)

    lines = []
    for one, points in shown:
        places = [place(point) for point in points]
        marks = places if len(places) <= 60 and not one.faint else []
        path = "M" + "L".join(f"{x} {y}" for x, y in places)
        lines.append(
            DrawnLine(one.name, one.colour, one.faint, path, marks, place(one.marked) if one.marked else None)
        )
    x_ticks = [(place((x, low))[0], f"{x:,.10g}") for x in linear_ticks(0, end)]
    y_ticks = [(place((0, y))[1], f"{y:,g}".replace("e-0", "e-")) for y in log_ticks(low, high)]
    return LineChart(title, about, *labels, lines, x_ticks, y_ticks)


def interval_chart(
    title: str, about: str, rows: Sequence[tuple[str, int, tuple[float, float, float]]]
) -> IntervalChart:
    """Chart of relative changes (estimate, low, high), each with a name and a colour, in percent."""
    low = min(0.0, *(change[1] for *_, change in rows))
    high = max(0.0, *(change[2] for *_, change in rows))
    room = 0.06 * (high - low) or 0.01
    low, high = low - room, high + room
    left, right = 6, _NARROW - 6

    def place(value: float) -> str:
        return _text(left + (right - left) * (value - low) / (high - low))

    bars = [
        Bar(name, percent(change[0]), colour, _text(_ROW * row + 32), *map(place, (*change[1:], change[0])))
        for row, (name, colour, change) in enumerate(rows)
    ]
    bottom = _ROW * len(rows) + 8
    ticks = [(place(value), f"{100 * value:g}%".replace("-", "−")) for value in linear_ticks(low, high)]
    return IntervalChart(title, about, bars, ticks, place(0), bottom, bottom + 26)


def percent(value: float) -> str:
    """A relative change with its sign, such as −7.1%, and with two digits if it is small."""
    digits = 1 if abs(value) >= 0.0095 or not value else 2
    return f"{100 * value:+z.{digits}f}%".replace("-", "−") if value else "0%"


def linear_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most ``most`` round numbers from ``low`` to ``high``."""
    span = high - low
    if span <= 0:
        return [low]
    size = 10.0 ** math.floor(math.log10(span / most))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10, 20) if span / (size * factor) < most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{index * step:.6g}") for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers from ``low`` to ``high`` for a logarithmic axis: powers of ten, or evenly spaced ones."""
    powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    if len(powers) > 3:
        step = -(-len(powers) // 6)
        return [float(f"1e{power}") for power in powers if power % step == 0]
    fine = [
        float(f"{factor}e{power}")
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for factor in (1, 2, 5)
    ]
    inside = [value for value in fine if low <= value <= high]
    return inside if len(inside) > 3 else linear_ticks(low, high, 5)


def shown_best(series: Sequence[Series], unit: str) -> str:
    """A sentence on the marked point of every series."""
    best = [
        f"{one.name} is best at {unit} {one.marked[0]:,.0f} with {number('ppl', one.marked[1])}"
        for one in series
        if one.marked
    ]
    return "; ".join(best)


def _text(value: float) -> str:
    return f"{value:.1f}"
