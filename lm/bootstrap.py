"""The paired bootstrap: how certain is it that one run is better than another on the same data?

What is resampled are units of text, conversations or blocks of it, since tokens and contexts that stand
together share topic and words: resampled one by one, differences would look more certain than they are.
Each unit contributes sums (nats and tokens, BLEU and contexts), and a score is a ratio of sums.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lm.errors import ConfigError

Floats = NDArray[np.float64]

FEWEST_RESAMPLES = 1000
FEWEST_UNITS = 5  # below which a p-value would mean nothing
SIGNIFICANT = 0.05
_CONFIDENCE = 1.96  # standard errors of a 95 % interval


def half_interval(values: Floats) -> float:
    """Half the 95 % interval of a mean, by the normal distribution; 0 of fewer than two values."""
    return float(_CONFIDENCE * values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def draws(units: int, resamples: int, seed: int) -> Floats:
    """How often each of the units is drawn in each of the resamples, (R, U); ConfigError for too few."""
    if resamples < FEWEST_RESAMPLES:
        raise ConfigError(f"--resamples {resamples}: must be at least {FEWEST_RESAMPLES}")
    drawn = np.random.default_rng(seed).multinomial(units, np.full(units, 1 / units), size=resamples)
    return drawn.astype(np.float64)


def by_unit(units: ArrayLike, values: ArrayLike) -> Floats:
    """Sums of the values over each of the U units that they belong to, (U,)."""
    _, unit = np.unique(units, return_inverse=True)
    return np.bincount(unit, weights=np.asarray(values)).astype(np.float64)


def p_values(pairs: Mapping[str, tuple[Floats, Floats]], counts: Floats) -> dict[str, float | None]:
    """Two-sided p-values of differences, by score; None below 5 units.

    The share of resamples in which the difference is not on its side of 0, doubled; the estimate adds one to
    both counts so that it is never 0. Runs with equal scores get 1.

    Args:
        pairs: for each score the differences of the units' sums, and the units' sizes, each (U,).
        counts: what :func:`draws` gave.
    """
    if counts.shape[1] < FEWEST_UNITS:
        return dict.fromkeys(pairs)
    return {score: _two_sided(counts @ sums / (counts @ sizes)) for score, (sums, sizes) in pairs.items()}


def mark(p: float | None) -> str:
    """An asterisk where a difference is significant."""
    return "*" if p is not None and p < SIGNIFICANT else ""


def _two_sided(differences: Floats) -> float:
    total = len(differences)
    tail = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    return min(1.0, 2 * (tail + 1) / (total + 1))
