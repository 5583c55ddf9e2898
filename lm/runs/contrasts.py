"""Tests of mean scores over seeds, which count the noise of training.

A test has the variance of a difference from two sources: the spread of the seeds of each pool, and the
choice of the text by the bootstrap. It is Welch's t-test, with the text as a further part of the variance and
of the degrees of freedom. Resampling two or three seeds instead would find far too small p-values. Seeds that
differ in how they fit a text count in both parts. With two or three seeds of unequal spreads p-values below
.05 still come up in up to 8 % of tests without a difference, those below .01 in up to 3 %.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lm.arrays import Floats
from lm.bootstrap import Interval, Resamples

ScoreSums = tuple[Floats, Floats]  # sums of a score by unit, and sizes of the units, each (U,)
_LEVEL = 0.975  # quantile at the upper end of a 95 % interval
_BISECTIONS = 40


def means(runs: Sequence[ScoreSums]) -> Floats:
    """The score of every run, (S,)."""
    return np.array([sums.sum() / sizes.sum() for sums, sizes in runs])


def welch(
    runs: Sequence[ScoreSums], baseline: Sequence[ScoreSums], counts: Resamples
) -> tuple[float, Interval]:
    """P-value and 95 % interval of the difference of two mean scores, each over two or more seeds.

    ``counts`` are those of the units of the text.
    """
    return Contrasts([runs, baseline], counts).test((1, -1))


class SeedSpread(NamedTuple):
    """Variance of a score over seeds, and its degrees of freedom."""

    variance: float
    freedom: int

    @classmethod
    def within(cls, pools: Sequence[Sequence[ScoreSums]]) -> "SeedSpread | None":
        """That within pools, as in an analysis of variance; None if each has one run.

        It assumes that the seeds of all pools vary alike.
        """
        scores = [means(runs) for runs in pools]
        freedom = sum(len(own) - 1 for own in scores)
        squares = sum(float(((own - own.mean()) ** 2).sum()) for own in scores)
        return cls(squares / freedom, freedom) if freedom else None


class Contrasts:
    """Weighted sums of the mean scores of pools of runs on one text.

    Args:
        pools: of each pool the sums of its runs, whose seeds differ.
        counts: counts of the units in resamples.
        single: spread over seeds that a pool of one run takes; without it, each pool has two runs or more.
    """

    def __init__(
        self, pools: Sequence[Sequence[ScoreSums]], counts: Resamples, single: SeedSpread | None = None
    ) -> None:
        scores = [means(runs) for runs in pools]
        own = [SeedSpread.within([runs]) or single for runs in pools]
        spreads = [spread for spread in own if spread is not None]
        self._means = np.array([values.mean() for values in scores])
        self._variances = np.array(
            [spread.variance / len(values) for spread, values in zip(spreads, scores, strict=True)]
        )
        self._resampled = np.array([_resampled(runs, counts) for runs in pools])
        self._borrows = np.array([len(values) == 1 for values in scores])  # one estimate, however many do
        own_freedom = [spread.freedom for spread, runs in zip(spreads, pools, strict=True) if len(runs) > 1]
        borrowed = single.freedom if single else 1
        self._freedom = np.array([*own_freedom, borrowed, counts.units - 1])

    def test(self, weights: Sequence[float]) -> tuple[float, Interval]:
        """P-value of a sum with weights, one a pool, against 0, and its 95 % interval."""
        from scipy.special import stdtr, stdtrit  # Student's t; takes longer to load than the rest

        by_pool = np.array(weights, np.float64)
        of_pools, borrows = by_pool**2 * self._variances, self._borrows
        of_text = np.var(by_pool @ self._resampled)
        parts = np.array([*of_pools[~borrows], of_pools[borrows].sum(), of_text])
        estimate, variance = float(by_pool @ self._means), float(parts.sum())
        if variance == 0:
            return float(estimate == 0), Interval(estimate, estimate, estimate)
        freedom = variance**2 / float((parts**2 / self._freedom).sum())
        half = float(stdtrit(freedom, _LEVEL)) * variance**0.5
        p = 2 * float(stdtr(freedom, -abs(estimate) / variance**0.5))
        return p, Interval(estimate, estimate - half, estimate + half)

    def ratio(self, numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
        """Ratio of two sums with its 95 % interval by Fieller's theorem.

        The interval has every ratio r for which ``numerator`` - r ``denominator`` does not differ from 0. It
        has no bounds if the denominator does not differ from 0.
        """
        above, below = np.array(numerator, np.float64), np.array(denominator, np.float64)

        def possible(ratio: float) -> bool:
            _, found = self.test((above - ratio * below).tolist())
            return found.low <= 0 <= found.high

        estimate = float(above @ self._means / (below @ self._means))
        _, whole = self.test(denominator)
        if whole.low <= 0 <= whole.high:
            return Interval(estimate, -np.inf, np.inf)
        return Interval(estimate, _edge(possible, estimate, -1.0), _edge(possible, estimate, 1.0))


def _resampled(runs: Sequence[ScoreSums], counts: Resamples) -> Floats:
    """The mean score of resampled texts, (R,)."""
    found: Floats = counts @ np.mean([sums for sums, _ in runs], 0) / (counts @ runs[0][1])
    return found


def _edge(inside: Callable[[float], bool], start: float, step: float) -> float:
    """The end of an interval around ``start`` in the direction of ``step``, by bisection."""
    while inside(start + step):
        step *= 2
    near, far = 0.0, step
    for _ in range(_BISECTIONS):
        middle = (near + far) / 2
        near, far = (middle, far) if inside(start + middle) else (near, middle)
    return start + near
