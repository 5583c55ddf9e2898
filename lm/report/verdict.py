"""Judgement on compared runs: the better one, by how much, and if that may be noise, in sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lm.bootstrap import FEW_UNITS, FEWEST_UNITS, SIGNIFICANT
from lm.console.shared_tables import pool_name
from lm.numbers import number, shown
from lm.runs.compare import ComparedRun, ComparedRuns
from lm.runs.pooling import PooledRuns

MAIN = "perplexity"  # the score that decides


@dataclass(frozen=True)
class Judgement:
    """A headline, and sentences that explain it. ``clear`` is False if the difference may be noise."""

    headline: str
    sentences: Sequence[str]
    clear: bool


def judgement(comparison: ComparedRuns, names: Mapping[str, str], units: str) -> Judgement:
    """Judgement by perplexity, of a comparison whose first run has the lowest.

    ``units`` names the resampled units in the plural, such as "conversations".
    """
    best, *others = comparison.runs
    name, count = names[best.run], comparison.bootstrap.units
    has = f"{name} has a perplexity of {number(MAIN, best.perplexity)}"
    guess = [
        f"{names[row.run]} is near guessing: its loss is above 92.5 % of that of uniform guessing."
        for row in comparison.runs
        if row.near_guessing
    ]
    if not others:
        interval = best.interval[MAIN]
        range_ = f"The 95% interval over {count:,} {units} is {_range(interval)}." if interval else ""
        return Judgement(f"{has}.", [*filter(None, [range_]), *guess], clear=True)
    if all(row.near_guessing for row in comparison.runs):
        return Judgement("No comparison: every run is near guessing.", guess, clear=False)
    if comparison.pools:
        told = _over_seeds(comparison.pools, names)
        return Judgement(told.headline, [*told.sentences, *guess], told.clear)
    if count < FEWEST_UNITS:
        needed = f"The text has {count} {units}, and a test needs at least {FEWEST_UNITS}."
        headline = f"The text is too short to decide which run is better. {has}, the lowest."
        return Judgement(headline, [needed, *guess], clear=False)
    close = [row for row in others if not _significant(row)]
    few = f" P-values of only {count} {units} say little." if count < FEW_UNITS else ""
    headline = _headline(best, others, close, names) + few
    sentences = [_against(row, best, names, alone=len(others) == 1) for row in others]
    return Judgement(headline, [*sentences, _meaning(others, count, units), *guess], clear=not close)


def _headline(
    best: ComparedRun, others: Sequence[ComparedRun], close: Sequence[ComparedRun], names: Mapping[str, str]
) -> str:
    name, value = names[best.run], number(MAIN, best.perplexity)
    if len(others) == 1:
        (other,) = others
        values = f"{value} instead of {number(MAIN, other.perplexity)}"
        if close:
            return (
                f"No clear difference between {name} and {names[other.run]}: perplexities of {value} and "
                f"{number(MAIN, other.perplexity)} may differ by noise."
            )
        gain = f"{_share(_gain(other)[0])} lower ({values})"
        return (
            f"{name} is better than {names[other.run]}: its perplexity is {gain}, more than the noise of the"
            " text."
        )
    if close:
        near = " and ".join(names[row.run] for row in close)
        return f"{name} has the lowest perplexity, {value}, but its lead over {near} may be noise."
    return (
        f"{name} is the best of {len(others) + 1} runs: its perplexity is {value}, and its lead is more than"
        " the noise of the text."
    )


def _against(row: ComparedRun, best: ComparedRun, names: Mapping[str, str], *, alone: bool) -> str:
    estimate, low, high = _gain(row)
    tested = f"95% interval {_share(low)} to {_share(high)}, p = {shown('p', row.p.get(MAIN))}"
    if alone:
        return f"{names[best.run]} is {_share(estimate)} lower: {tested}."
    may = "more than the noise of the text" if _significant(row) else "may be noise"
    return (
        f"{names[best.run]} against {names[row.run]}: {number(MAIN, best.perplexity)} instead of"
        f" {number(MAIN, row.perplexity)}, {_share(estimate)} lower, {tested}: {may}."
    )


def _meaning(others: Sequence[ComparedRun], count: int, units: str) -> str:
    several = f" The {len(others)} p-values are not corrected for their number." if len(others) > 1 else ""
    return (
        f"Interval and p-value are of a paired bootstrap over {count:,} {units} of the text."
        f" They cover the choice of the text, not of the training seed.{several}"
        " Only several runs of one config, each with a seed of its own, show how much the seed decides."
    )


def _over_seeds(pools: Sequence[PooledRuns], names: Mapping[str, str]) -> Judgement:
    """Judgement of pools, of which the first has the lowest mean perplexity."""
    called = [pool_name(names[pool.runs[0]], len(pool.runs)) for pool in pools]
    sentences = [_seeds(pool, name) for pool, name in zip(pools, called, strict=True)]
    mean, _, _ = pools[0].scores[MAIN]
    if len(pools) == 1:
        return Judgement(
            f"One setting with several seeds: a mean perplexity of {number(MAIN, mean)}.", sentences, True
        )
    p = {name: pool.p.get(MAIN) for name, pool in zip(called[1:], pools[1:], strict=True)}
    untested = [name for name, value in p.items() if value is None]
    close = [name for name, value in p.items() if value is not None and value >= SIGNIFICANT]
    reasons = [
        f"its lead over {' and '.join(others)} {what}"
        for others, what in ((close, "may be noise"), (untested, "is not tested"))
        if others
    ]
    lead = f"but {' and '.join(reasons)}" if reasons else "by more than the noise of seeds and texts"
    return Judgement(
        f"{called[0]}: the lowest mean perplexity over seeds, {number(MAIN, mean)}, {lead}.",
        [
            *sentences,
            "P-values are of Welch's t-test over seeds and texts, which needs two seeds on either side."
            + (f" The {len(p)} p-values are not corrected for their number." if len(p) > 1 else ""),
        ],
        clear=not reasons,
    )


def _seeds(pool: PooledRuns, name: str) -> str:
    mean, lowest, highest = (number(MAIN, value) for value in pool.scores[MAIN])
    seeds = ", ".join(map(str, pool.seeds))
    values = (
        f"{lowest} to {highest}, mean {mean} (seeds {seeds})"
        if len(pool.runs) > 1
        else f"{mean} (seed {seeds})"
    )
    p = pool.p.get(MAIN)
    tested = "" if p is None else f", p = {number('p', p)}"
    return f"{name}: {values}{tested}."


def reading(p: float | None, change: float, *, lower_is_better: bool) -> str:
    """A change as better, worse or no clear difference."""
    if p is None:
        return "not tested"
    if p >= SIGNIFICANT:
        return "no clear difference"
    return "better" if (change < 0) == lower_is_better else "worse"


def _significant(row: ComparedRun) -> bool:
    p = row.p.get(MAIN)
    return p is not None and p < SIGNIFICANT


def _gain(row: ComparedRun) -> tuple[float, float, float]:
    """Share by which the best run's perplexity is below that of another, and the ends of its interval."""
    estimate, low, high = (change / (1 + change) for change in row.change[MAIN] or ())
    return estimate, low, high


def _share(value: float) -> str:
    return f"{100 * value:z.1f}%".replace("-", "−")


def _range(interval: Sequence[float]) -> str:
    return f"{number(MAIN, interval[1])} to {number(MAIN, interval[2])}"
