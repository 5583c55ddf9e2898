"""Comparison of runs over seeds: means, and tests that count the noise of training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lm.disk.storage import write_json
from lm.language.compare import compare
from lm.language.tables import comparison_tables
from lm.runs.compare import ComparedRuns
from tests.support.kept_records import keep_record

UNITS, TOKENS = 30, 1000


def keep_run(folder: Path, nats: Any, seed: int, lr: float = 0.1, **facts: Any) -> Path:
    """A run of a config with an evaluation whose blocks have these nats a token."""
    sums = TOKENS * np.asarray(nats)
    mean = float(sums.sum() / (TOKENS * len(sums)))
    result = {
        "head": "mos", "components": 3, "parameters": 7, "checkpoint": "best", "seed": seed,
        "method": "static", "compat": "none", "tokens": TOKENS * len(sums), "nll": mean,
        "perplexity": float(np.exp(mean)), "vocabulary_sha256": "v", "data": {"sha256": "d" * 64},
    }  # fmt: skip
    keep_record(folder, "test", result | facts, {"nll": sums.tolist(), "tokens": [TOKENS] * len(sums)})
    config = {"train": {"seed": seed, "max_minutes": float(seed)}, "optim": {"lr": lr}}
    write_json(folder / "config.json", {"config": config, "provenance": {}})
    return folder


def trained(
    folder: Path, rng: np.random.Generator, name: str, seeds: int, better: float, noise: float
) -> list[Path]:
    """Runs whose scores differ by a normal draw for each training."""
    text = np.random.default_rng(0).normal(4, 0.5, UNITS)
    lr = float(len(name))
    return [
        keep_run(
            folder / f"{name}-{seed}",
            text - better + rng.normal(0, noise) + rng.normal(0, 0.002, UNITS),
            seed,
            lr,
        )
        for seed in range(1, seeds + 1)
    ]


def pools_of(runs: list[Path]) -> Any:
    found: ComparedRuns = compare(runs, resamples=1000)
    return found.pools


def test_means_are_of_nats_with_the_lowest_and_the_highest_perplexity(tmp_path: Path) -> None:
    values = [3.0, 3.2, 3.7]
    runs = [keep_run(tmp_path / str(seed), [nats] * UNITS, seed) for seed, nats in enumerate(values)]
    other = keep_run(tmp_path / "other", [4.0] * UNITS, 1, lr=0.2)
    first, second = pools_of([*runs, other])
    assert first.seeds == [0, 1, 2]
    assert second.runs == [str(other)]
    assert first.scores["perplexity"] == pytest.approx(np.exp([3.3, 3.0, 3.7]))
    assert first.p == first.change == {}
    change = second.change["perplexity"]
    assert change.estimate == pytest.approx(np.expm1(0.7))
    assert change.low == pytest.approx(np.expm1(0.3))  # resamples of the worst seed alone are 4 % of all
    assert change.high == pytest.approx(np.expm1(1.0))


def test_equal_seeds_are_tested_like_a_single_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    nats = rng.normal(4, 0.5, UNITS)
    texts = [nats, nats + rng.normal(0.01, 0.05, UNITS)]
    runs = [
        keep_run(tmp_path / f"{which}-{seed}", texts[which], seed, lr=which)
        for which in (0, 1)
        for seed in (1, 2)
    ]
    compared = compare(runs, resamples=1000)
    p = compared.runs[2].p["perplexity"]
    assert compared.pools is not None
    assert compared.pools[1].p["perplexity"] == p
    assert 0.002 < p < 1


def test_noise_of_training_does_not_pass_for_a_gain(tmp_path: Path) -> None:
    rng, seeds, trials, single, pooled = np.random.default_rng(3), 5, 12, 0, 0
    for trial in range(trials):
        folder = tmp_path / str(trial)
        runs = [run for name in ("a", "bb") for run in trained(folder, rng, name, seeds, 0.0, 0.05)]
        compared = compare(runs, resamples=1000)
        assert compared.pools is not None
        single += compared.runs[seeds].p["perplexity"] < 0.05
        pooled += compared.pools[1].p["perplexity"] < 0.05
    assert single >= trials // 2  # two trainings differ, whatever their configs
    assert pooled <= trials // 4


def test_a_gain_beyond_the_noise_of_training_is_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    runs = [
        run
        for name, better in (("a", 0.0), ("bb", 0.1))
        for run in trained(tmp_path, rng, name, 3, better, 0.01)
    ]
    _, other = pools_of(runs)
    assert other.p["perplexity"] < 0.01
    assert other.change["perplexity"].high < 0
    tables = "\n".join(str(part) for part in comparison_tables(compare(runs, resamples=1000)))
    assert "Tests over seeds" in tables


@pytest.mark.parametrize("facts", [{"members": [{"run": "x"}]}, {"checkpoint": "last"}])
def test_other_configs_weights_and_ensembles_are_not_pooled(tmp_path: Path, facts: dict[str, Any]) -> None:
    nats = [4.0] * UNITS
    first = keep_run(tmp_path / "a", nats, 1)
    assert pools_of([first, keep_run(tmp_path / "b", nats, 2, lr=0.2)]) is None
    assert pools_of([first, keep_run(tmp_path / "c", nats, 2, **facts)]) is None
    assert len(pools_of([first, keep_run(tmp_path / "d", nats, 2)])) == 1
