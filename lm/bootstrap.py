"""Paired bootstrap tests of the difference between two runs on the same data, and intervals of means.

The resampled units are conversations or blocks of text. Neighbouring tokens and contexts share topic and
words, so resampling them one by one would overstate certainty. Each unit contributes sums (nats and tokens,
BLEU and contexts), and a score is a ratio of sums.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lm.arrays import Floats, Ints
from lm.errors import ConfigError

FEWEST_RESAMPLES = 1000
FEWEST_UNITS = 5  # minimum for a meaningful p-value
FEW_UNITS = 20  # below, the resamples are too alike for a trustworthy p-value
SIGNIFICANT = 0.05
_BLOCK = 500  # resamples whose counts are numbers of 8 bytes at a time
TAILS = (0.025, 0.975)  # quantiles at the ends of a 95 % interval


class Resamples:
    """Counts of each of the U ``units`` in each of the R resamples. ConfigError for too few resamples.

    ``resamples @ values`` are the sums over each resample, (R,), of values (U,). A count is held in one
    byte, as more than 255 draws of one of many units do not occur.
    """

    def __init__(self, units: int, resamples: int, seed: int) -> None:
        if resamples < FEWEST_RESAMPLES:
            raise ConfigError(f"--resamples {resamples}: must be at least {FEWEST_RESAMPLES}")
        self.units = units
        random = np.random.default_rng(seed)
        sizes = (min(_BLOCK, resamples - done) for done in range(0, resamples, _BLOCK))
        self._blocks = [np.stack([self._drawn(random) for _ in range(size)]) for size in sizes]

    def _drawn(self, random: np.random.Generator) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
        """Counts of one resample. ``multinomial`` takes several times as long for many units."""
        drawn = random.integers(0, self.units, self.units)
        return np.bincount(drawn, minlength=self.units).astype(np.uint8)

    def __matmul__(self, values: Floats | Ints) -> Floats:
        return np.concatenate([block.astype(np.float64) @ values for block in self._blocks])


def by_unit(units: ArrayLike, values: ArrayLike) -> Floats:
    """Sums of the values by unit, (U,)."""
    _, unit = np.unique(units, return_inverse=True)
    return np.bincount(unit, weights=np.asarray(values)).astype(np.float64)


def p_values(pairs: Mapping[str, tuple[Floats, Floats]], counts: Resamples) -> dict[str, float | None]:
    """Two-sided p-values of differences, by score. None below 5 units, and for what is not finite.

    A p-value is twice the share of resamples in which the difference changes its sign. The estimate adds one
    to both counts, so it is never 0. Runs with equal scores get 1.

    Args:
        pairs: for each score the differences of the units' sums, and the units' sizes, each (U,).
        counts: the resamples.
    """
    if counts.units < FEWEST_UNITS:
        return dict.fromkeys(pairs)
    return {score: _two_sided(counts @ sums / (counts @ sizes)) for score, (sums, sizes) in pairs.items()}


class Interval(NamedTuple):
    """An estimate and its 95 % interval."""

    estimate: float
    low: float
    high: float


def intervals(pairs: Mapping[str, tuple[Floats, Floats]], counts: Resamples) -> dict[str, Interval | None]:
    """Ratios of sums with 95 % percentile intervals, by score, from the arguments of :func:`p_values`.

    None below 5 units.
    """
    if counts.units < FEWEST_UNITS:
        return dict.fromkeys(pairs)
    return {
        score: Interval(
            float(sums.sum() / sizes.sum()), *np.quantile(counts @ sums / (counts @ sizes), TAILS).tolist()
        )
        for score, (sums, sizes) in pairs.items()
    }


def mean_intervals(columns: Floats, units: ArrayLike, resamples: int, seed: int) -> list[Interval | None]:
    """Means of columns (N, C) with 95 % intervals, by the units (N,) of the rows. None below 5 units."""
    sizes = by_unit(units, np.ones(len(columns)))
    pairs = {str(column): (by_unit(units, values), sizes) for column, values in enumerate(columns.T)}
    return [*intervals(pairs, Resamples(len(sizes), resamples, seed)).values()]


def _two_sided(differences: Floats) -> float | None:
    if not np.isfinite(differences).all():
        return None
    total = len(differences)
    tail = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    return min(1.0, 2 * (tail + 1) / (total + 1))
