"""Verdicts of a report: who is better, by how much, and if that is noise."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dialog.compare import compare
from lm.bootstrap import Interval, Resamples, intervals
from lm.report.verdict import Judgement, judgement, reading
from lm.runs.compare import ComparedRun, ComparedRuns, Resampling
from lm.runs.pooling import OverSeeds, PooledRuns
from tests.support.kept_records import keep_scores


def compared(
    *perplexities: float, p: float | None = 0.001, units: int = 40, guess: bool = False
) -> ComparedRuns:
    """A comparison of runs a, b, … with these perplexities, the lowest first."""
    first = perplexities[0]
    runs = [
        ComparedRun(
            run=name,
            evaluation="test",
            facts={"perplexity": value},
            near_guessing=guess,
            unfinished="",
            p={"perplexity": p},
            interval={"perplexity": Interval(value, value - 1, value + 1)},
            change={"perplexity": Interval(value / first - 1, value / first - 1.01, value / first - 0.99)},
        )
        for name, value in zip("abc", perplexities, strict=False)
    ]
    return ComparedRuns("test", {}, Resampling(1000, 1, "dialog", units), runs)


@pytest.mark.parametrize(
    ("comparison", "headline", "clear"),
    [
        (compared(50.0, 100.0), "its perplexity is 50.0% lower (50.00 instead of 100.00)", True),
        (compared(50.0, 50.2, p=0.3), "No clear difference between a and b", False),
        (compared(50.0, 60.0, 70.0), "a is the best of 3 runs", True),
        (compared(50.0, 60.0, 70.0, p=0.2), "its lead over b and c may be noise", False),
        (compared(50.0, 60.0, units=4, p=None), "too short to decide", False),
        (compared(50.0, 60.0, guess=True, p=None), "No comparison: every run", False),
        (compared(50.0), "a has a perplexity of 50.00.", True),
    ],
)  # fmt: skip
def test_the_verdict_says_who_is_better_by_how_much_and_if_that_is_noise(
    comparison: ComparedRuns, headline: str, clear: bool
) -> None:
    told = judgement(comparison, {name: name for name in "abc"}, "conversations")
    assert headline in told.headline
    assert told.clear == clear


@pytest.mark.parametrize(("p", "clear"), [(0.049, True), (0.051, False)])
def test_a_difference_is_clear_below_five_percent(p: float, clear: bool) -> None:
    told = judgement(compared(50.0, 60.0, p=p), {name: name for name in "abc"}, "conversations")
    assert told.clear == clear
    assert reading(p, -0.1, lower_is_better=True) == ("better" if clear else "no clear difference")


def test_few_units_and_several_tests_are_said() -> None:
    told = judgement(compared(50.0, 60.0, 70.0, units=12), {name: name for name in "abc"}, "conversations")
    assert told.headline.endswith(" P-values of only 12 conversations say little.")
    assert any("2 p-values are not corrected" in line for line in told.sentences)


def test_the_share_lower_is_that_of_the_other_way_round() -> None:
    """If b is 25 % above a, then a is 20 % below b, and so are the ends of the interval."""
    told = judgement(compared(80.0, 100.0), {name: name for name in "abc"}, "conversations")
    assert "20.0% lower" in told.headline
    assert "95% interval 19.4% to 20.6%" in told.sentences[0]


def pooled_as(*pools: PooledRuns, guess: bool = False) -> Judgement:
    comparison = replace(compared(4.0, 5.0, 6.0, guess=guess), pools=pools)
    return judgement(comparison, {name: name.upper() for name in "abc"}, "conversations")


def test_runs_of_several_seeds_are_judged_together() -> None:
    one, two = {"perplexity": OverSeeds(4.5, 4.0, 5.0)}, {"perplexity": OverSeeds(6.0, 6.0, 6.0)}
    first = PooledRuns(["a", "b"], [1, 2], one, {}, {})
    told = pooled_as(first, PooledRuns(["c"], [1], two, {"perplexity": None}, {}))
    assert (
        told.headline
        == "A and 1 more: the lowest mean perplexity over seeds, 4.50, but its lead over C is not tested."
    )
    assert told.sentences[:2] == ["A and 1 more: 4.00 to 5.00, mean 4.50 (seeds 1, 2).", "C: 6.00 (seed 1)."]
    assert not told.clear
    assert pooled_as(first, PooledRuns(["c"], [1], two, {"perplexity": 0.03}, {})).clear
    noise = pooled_as(first, PooledRuns(["c"], [1], two, {"perplexity": 0.3}, {}))
    assert noise.headline.endswith("but its lead over C may be noise.")
    assert noise.sentences[1].endswith("p = 0.3000.")
    second, third = (PooledRuns([name], [1], two, {"perplexity": 0.03}, {}) for name in "bc")
    assert "2 p-values are not corrected" in pooled_as(first, second, third).sentences[-1]
    assert pooled_as(first).headline == "One setting with several seeds: a mean perplexity of 4.50."
    assert pooled_as(first, guess=True).headline == "No comparison: every run is near guessing."
    comparison = replace(compared(4.0, 5.0, 6.0), pools=[first])
    comparison.runs[0] = replace(comparison.runs[0], near_guessing=True)
    told = judgement(comparison, {name: name.upper() for name in "abc"}, "conversations")
    assert told.headline.startswith("One setting with several seeds"), "others have learnt"
    assert told.sentences[-1].startswith("A is near guessing")


def test_a_reading_knows_the_better_direction() -> None:
    assert reading(0.01, -0.1, lower_is_better=True) == "better"
    assert reading(0.01, -0.1, lower_is_better=False) == "worse"
    assert reading(0.2, -0.1, lower_is_better=True) == "no clear difference"
    assert reading(None, -0.1, lower_is_better=True) == "not tested"


def test_intervals_are_quantiles_of_resampled_ratios() -> None:
    random = np.random.default_rng(3)
    sums, sizes = random.normal(1, 1, 30), random.uniform(1, 2, 30)
    resampling = np.random.default_rng(4)
    draws = [resampling.integers(0, 30, 30) for _ in range(1700)]
    ratios = [float(sums[drawn].sum() / sizes[drawn].sum()) for drawn in draws]
    (estimate, low, high) = intervals({"x": (sums, sizes)}, Resamples(30, 1700, seed=4))["x"] or (0, 0, 0)
    assert estimate == pytest.approx(sums.sum() / sizes.sum())
    assert (low, high) == pytest.approx(tuple(np.quantile(ratios, (0.025, 0.975))))
    assert intervals({"x": (sums[:4], sizes[:4])}, Resamples(4, 1000, seed=4)) == {"x": None}


def test_changes_turn_round_with_the_runs(tmp_path: Path) -> None:
    first, other = keep_scores(tmp_path / "a"), keep_scores(tmp_path / "b", seed=2, better=0.02)
    there = compare([first, other], resamples=1000).runs[1].change
    back = compare([other, first], resamples=1000).runs[1].change
    for mine, theirs in zip(there["perplexity"], (back["perplexity"][i] for i in (0, 2, 1)), strict=True):
        assert (1 + mine) * (1 + theirs) == pytest.approx(1)
    assert there["bleu/1/recall"] == pytest.approx([-back["bleu/1/recall"][i] for i in (0, 2, 1)])
    rows = compare([first, other], resamples=1000).runs
    before, after = (row.score("bleu/1/recall") for row in rows)
    assert there["bleu/1/recall"][0] == pytest.approx(after - before)
