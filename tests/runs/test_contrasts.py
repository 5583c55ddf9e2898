"""Tests over seeds against scipy, and in languages whose truth is known."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import f_oneway, t, ttest_ind

from lm.arrays import Floats
from lm.bootstrap import Resamples
from lm.runs.contrasts import Contrasts, ScoreSums, SeedSpread, welch

UNITS, TOKENS = 40, 25.0
COUNTS = Resamples(UNITS, 1000, 1)


class Whole(Resamples):
    """Resamples that are the text itself, which then is no source of noise."""

    def __init__(self, units: int) -> None:
        self.units = units

    def __matmul__(self, values: Any) -> Any:
        return np.full(2, values.sum())


def pool(nats: Floats, text: Floats | float = 0.0) -> list[ScoreSums]:
    """Runs of given means, whose units have these and the nats of the text."""
    return [(TOKENS * (value + text + np.zeros(UNITS)), np.full(UNITS, TOKENS)) for value in nats]


def test_without_noise_of_the_text_it_is_the_t_test_of_welch() -> None:
    one, other = np.array([3.0, 3.2, 3.7]), np.array([4.0, 4.1])
    p, change = welch(pool(other), pool(one), COUNTS)
    expected = ttest_ind(other, one, equal_var=False)
    assert p == pytest.approx(expected.pvalue)
    assert change == pytest.approx([4.05 - 3.3, *expected.confidence_interval()])


def test_without_noise_of_training_it_is_a_t_test_over_the_text() -> None:
    rng = np.random.default_rng(8)
    one, other = rng.normal(4, 0.5, UNITS), rng.normal(4.2, 0.5, UNITS)
    p, change = welch(pool(np.zeros(2), other), pool(np.zeros(2), one), COUNTS)
    error = np.std(COUNTS @ (other - one) / UNITS)
    assert p == pytest.approx(2 * t.sf(abs((other - one).mean()) / error, UNITS - 1))
    assert change.high - change.low == pytest.approx(2 * t.ppf(0.975, UNITS - 1) * error)


@pytest.mark.parametrize(("spreads", "most"), [((0.0042, 0.0042), 0.02), ((0.0138, 0.0024), 0.05)])
def test_three_seeds_do_not_tell_the_tails(spreads: tuple[float, float], most: float) -> None:
    """Heads without a difference, which vary as those of the Penn Treebank: pages show no p below .01."""
    rng, p_values = np.random.default_rng(5), []
    for _ in range(1500):
        difference = rng.normal(0, 0.0024 * math.sqrt(UNITS), UNITS)
        texts = zip(spreads, (difference, 0.0), strict=True)
        one, other = (pool(rng.normal(0, spread, 3), text) for spread, text in texts)
        p_values.append(welch(one, other, COUNTS)[0])
    shares = {level: np.mean(np.array(p_values) < level) for level in (0.05, 0.01, 0.001)}
    assert 0.03 < shares[0.05] < 0.09
    assert 0.005 < shares[0.01] < most
    assert shares[0.001] > 0.001


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_noise_of_training_does_not_pass_for_a_gain(seeds: int) -> None:
    rng, trials, found, sizes = np.random.default_rng(3), 300, 0, np.full(UNITS, TOKENS)
    for _ in range(trials):
        text = rng.normal(4, 0.5, UNITS)
        nats = text + rng.normal(0, 0.05, (2 * seeds, 1)) + rng.normal(0, 0.02, (2 * seeds, UNITS))
        sums = [(TOKENS * row, sizes) for row in nats]
        p, _ = welch(sums[seeds:], sums[:seeds], COUNTS)
        found += p < 0.05
    assert found <= 0.08 * trials
    assert found > 0


def test_a_single_run_takes_the_spread_within_other_pools() -> None:
    rng, trials, found = np.random.default_rng(4), 300, 0
    for _ in range(trials):
        text = rng.normal(4, 0.5, UNITS)
        several = [pool(rng.normal(0, 0.05, 3), text) for _ in range(4)]
        single = pool(rng.normal(0, 0.05, 1), text)
        spread = SeedSpread.within([*several, single])
        assert spread is not None
        assert spread.freedom == 8
        p, _ = Contrasts([single, several[0]], COUNTS, spread).test((1, -1))
        found += p < 0.05
    assert 0 < found <= 0.08 * trials
    assert SeedSpread.within([single]) is None


def test_two_single_runs_share_one_estimate_of_the_spread() -> None:
    rng, trials, found = np.random.default_rng(7), 2000, 0
    for _ in range(trials):
        several = [pool(rng.normal(0, 0.05, 3)) for _ in range(2)]
        one, other = pool(rng.normal(0, 0.05, 1)), pool(rng.normal(0, 0.05, 1))
        p, _ = Contrasts([one, other], Whole(UNITS), SeedSpread.within(several)).test((1, -1))
        found += p < 0.05
    assert 0.04 * trials < found < 0.06 * trials


def test_the_spread_is_that_within_groups() -> None:
    scores = ([3.0, 3.2, 3.7], [4.0, 4.1], [5.0])
    found = SeedSpread.within([pool(np.array(own)) for own in scores])
    assert found is not None
    between = f_oneway(*scores[:2])
    gap = (np.mean(scores[0]) - np.mean(scores[1])) ** 2 * 3 * 2 / 5  # mean square between two groups
    assert found.variance == pytest.approx(gap / between.statistic)
    assert found.freedom == 3


def test_the_ends_of_a_ratio_are_where_its_sum_has_p_of_five_per_cent() -> None:
    rng = np.random.default_rng(5)
    text = rng.normal(4, 0.5, UNITS)
    pools = [
        pool(mean + rng.normal(0, 0.01, 3), text + rng.normal(0, 0.05, UNITS)) for mean in (0.0, -0.1, -0.2)
    ]
    contrasts = Contrasts(pools, Resamples(UNITS, 1000, 2))
    found = contrasts.ratio((1, -1, 0), (1, 0, -1))
    means = [np.mean([nats.sum() / sizes.sum() for nats, sizes in own]) for own in pools]
    assert found.estimate == pytest.approx((means[0] - means[1]) / (means[0] - means[2]))
    for end in (found.low, found.high):
        p, _ = contrasts.test((1 - end, -1, end))
        assert p == pytest.approx(0.05)


def test_the_interval_of_a_ratio_has_the_truth_as_often_as_it_says() -> None:
    rng, trials, found = np.random.default_rng(6), 200, 0
    for _ in range(trials):
        means = (0.0, -0.06, -0.1)
        contrasts = Contrasts([pool(mean + rng.normal(0, 0.02, 3)) for mean in means], COUNTS)
        interval = contrasts.ratio((1, -1, 0), (1, 0, -1))
        found += interval.low <= 0.6 <= interval.high
    assert 0.92 * trials <= found < trials


def test_a_ratio_to_nothing_has_no_bounds() -> None:
    contrasts = Contrasts([pool(np.array(nats)) for nats in ([3.0, 3.2], [2.9, 2.8], [3.0, 3.1])], COUNTS)
    assert contrasts.ratio((1, -1, 0), (1, 0, -1))[1:] == (-math.inf, math.inf)
