"""Forms of numbers in the tables of README.md and docs/.

A number of results/*.json is one value, a list with one value a seed, or a mean with the lowest and the
highest value of the seeds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, geometric_mean
from typing import Any

Number = Any  # int, float, list of numbers, or a mapping; None where it was not measured
Form = Callable[[Number], str]
Column = tuple[str, str, Form]
LEAST_P = 0.01  # few seeds do not tell the tails of the distribution: tests/runs/test_contrasts.py


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in (headings, *rows)]
    return "\n".join([lines[0], "|---" * len(headings) + "|", *lines[1:]])


def mean_of(name: str, values: Sequence[float]) -> float:
    """Mean of a number over seeds; of perplexities the exponential of mean nats, as in ``compare``."""
    return geometric_mean(values) if "perplexity" in name else fmean(values)


def fixed(digits: int) -> Form:
    """Values with a number of digits after the point; seeds follow each other, their range is in brackets."""

    def shown(value: Number) -> str:
        if isinstance(value, list):
            return ", ".join(shown(item) for item in value)
        if isinstance(value, Mapping):
            lowest, highest = shown(value["lowest"]), shown(value["highest"])
            return lowest if lowest == highest else f"{shown(value['mean'])} ({lowest}–{highest})"
        return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"

    return shown


def mean_perplexity(digits: int) -> Form:
    """Mean of the perplexities of several seeds, that of their nats."""
    return lambda values: fixed(digits)(values[0] if len(set(values)) == 1 else mean_of("perplexity", values))


def percent(digits: int) -> Form:
    """Shares in per cent, in the forms of :func:`fixed`."""

    def of_share(value: Number) -> Number:
        if isinstance(value, list):
            return [of_share(item) for item in value]
        if isinstance(value, Mapping):
            return {part: of_share(item) for part, item in value.items()}
        return 100.0 * value

    return lambda value: fixed(digits)(of_share(value))


def three_digits(value: float) -> str:
    """A number in its first three digits."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:g}" if rounded < 1000 else f"{rounded:,.0f}"


def share(value: float) -> str:
    """A number below 1 without its zero."""
    return f"{value:.3f}".removeprefix("0")


def p_value(value: Number, least: float = 0.0001) -> str:
    """A p-value in its first two digits, or as below ``least``; those of the seeds follow each other.

    No bootstrap of 10,000 resamples has one below .0002, and few seeds do not tell the tails of a
    distribution.
    """
    if isinstance(value, list):
        return ", ".join(p_value(item, least) for item in value)
    return f"< {p_value(least, least)}" if value < least else f"{value:.2g}".removeprefix("0")


def p_text(value: float, least: float = 0.0001) -> str:
    """A p-value in a sentence: ``p = .02`` or ``p < .001``."""
    shown = p_value(value, least)
    return f"p {shown}" if shown.startswith("<") else f"p = {shown}"


def precision_recall(value: Number) -> str:
    """Precision and recall."""
    return f"{share(value['precision'])}/{share(value['recall'])}"


def times(value: float) -> str:
    """A ratio in its first two digits."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:.0f} ×" if rounded >= 100 else f"{rounded:#.2g}".removesuffix(".") + " ×"
