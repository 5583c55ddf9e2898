"""A learning curve as text for the terminal."""

import math

from lm.numbers import number
from lm.runs.overview import CurvePoint

_WIDTH, _HEIGHT = 60, 8  # characters


def curve_lines(points: list[CurvePoint], *, unicode: bool, columns: int = 79) -> list[str]:
    """Text plot of validation perplexity, on a log axis, against updates, in a number of ``columns``.

    [] for fewer than two points, and for too few columns.
    """
    if len(points) < 2:
        return []
    best_step, best = min(points, key=lambda point: point[1])
    low, high, end = best, max(value for _, value in points), points[-1][0]
    labels = [number("ppl", high), *[""] * (_HEIGHT - 2), number("ppl", low)]
    wide, updates = max(map(len, labels)), f"{end:,} updates"
    width = min(_WIDTH, columns - wide - 2)
    if width < len(updates) + 2:
        return []
    marks = [[" "] * width for _ in range(_HEIGHT)]
    for step, value in [*points, (best_step, best)]:  # the best hides those beside it
        column = round((width - 1) * step / max(1, end))
        height = _share(value, low, high)
        sign = ("●" if unicode else "O") if (step, value) == (best_step, best) else ("•" if unicode else "*")
        marks[round((_HEIGHT - 1) * (1 - height))][column] = sign
    side, corner, floor = ("│", "└", "─") if unicode else ("|", "+", "-")
    lines = [
        f"{label:>{wide}} {side}{''.join(row).rstrip()}" for label, row in zip(labels, marks, strict=True)
    ]
    return [
        f"validation perplexity, best {number('ppl', best)} at update {best_step:,}",
        *lines,
        f"{'':{wide}} {corner}{floor * width}",
        f"{'':{wide}}  0{updates:>{width - 1}}",
    ]


def _share(value: float, low: float, high: float) -> float:
    """Height of a value between two others on a log axis, from 0 to 1; 1 for non-finite values."""
    if not math.isfinite(value):
        return 1.0
    top = high if math.isfinite(high) else 1e300
    return math.log(value / low) / math.log(top / low) if top > low else 0.0
