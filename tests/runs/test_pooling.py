"""Comparison of runs over seeds: means, and tests that count the noise of training."""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_ind

from dialog.results import DialogEvaluation
from lm.bootstrap import FEWEST_UNITS
from lm.disk.jsonfile import write_json
from lm.language.compare import compare
from lm.language.results import StaticEvaluation
from lm.language.tables import comparison_tables
from lm.runs.compare import ComparedRuns
from lm.runs.evaluations import Member
from lm.runs.inputs import WITHOUT_EFFECT
from tests.support.kept_records import keep_record

UNITS, TOKENS = 30, 1000


def keep_run(folder: Path, nats: Any, seed: int, lr: float = 0.1, train: Any = None, **facts: Any) -> Path:
    """A run of a config with an evaluation whose blocks have these nats a token."""
    sums = TOKENS * np.asarray(nats)
    mean = float(sums.sum() / (TOKENS * len(sums)))
    result = {
        "head": "mos", "components": 3, "parameters": 7, "checkpoint": "best", "seed": seed,
        "method": "static", "compat": "none", "tokens": TOKENS * len(sums), "nll": mean,
        "perplexity": float(np.exp(mean)), "vocabulary_sha256": "v", "data": {"sha256": "d" * 64},
    }  # fmt: skip
    keep_record(folder, "test", result | facts, {"nll": sums.tolist(), "tokens": [TOKENS] * len(sums)})
    config = {"train": {"seed": seed} | (train or {}), "optim": {"lr": lr}}
    write_json(folder / "config.json", {"family": "lm", "config": config, "provenance": {}})
    return folder


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
    assert second.p == second.change == {"perplexity": None}  # one seed says nothing of the noise


def test_without_noise_of_the_text_it_is_the_t_test_of_welch(tmp_path: Path) -> None:
    nats = {0.1: [3.0, 3.2, 3.7], 0.2: [4.0, 4.1]}
    runs = [
        keep_run(tmp_path / f"{lr}-{seed}", [value] * UNITS, seed, lr)
        for lr, values in nats.items()
        for seed, value in enumerate(values)
    ]
    _, second = pools_of(runs)
    expected = ttest_ind(nats[0.2], nats[0.1], equal_var=False)
    assert second.p["perplexity"] == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval()
    assert second.change["perplexity"] == pytest.approx(np.expm1([4.05 - 3.3, low, high]))


@pytest.mark.parametrize(("units", "guesses"), [(UNITS, True), (FEWEST_UNITS - 1, False)])
def test_models_near_guessing_and_few_units_have_no_test(tmp_path: Path, units: int, guesses: bool) -> None:
    runs = [
        keep_run(tmp_path / f"{lr}-{seed}", [3 + seed / 10] * units, seed, lr, near_guessing=guesses)
        for lr in (0.1, 0.2)
        for seed in (1, 2)
    ]
    _, second = pools_of(runs)
    assert second.p == second.change == {"perplexity": None}


def test_a_gain_beyond_the_noise_of_training_is_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    text = rng.normal(4, 0.5, UNITS)
    runs = [
        keep_run(tmp_path / f"{lr}-{seed}", text - lr + rng.normal(0, 0.01, (2, 1)).sum(0), seed, lr)
        for lr in (0.0, 0.1)
        for seed in (1, 2, 3)
    ]
    _, other = pools_of(runs)
    assert other.p["perplexity"] < 0.01
    assert other.change["perplexity"].high < 0
    tables = "\n".join(str(part) for part in comparison_tables(compare(runs, resamples=1000)))
    assert "Welch's t-test over seeds and texts" in tables
    assert "'p against 0.0-1 and 2 more': '0.1-1 and 2 more'" in tables
    assert "head.products and keys without effect on the training count as one" in tables


@pytest.mark.parametrize("key", sorted(WITHOUT_EFFECT | {"train.log_every"}))
def test_what_changes_no_number_is_pooled(tmp_path: Path, key: str) -> None:
    runs = [keep_run(tmp_path / f"{seed}", [4.0] * UNITS, seed) for seed in (1, 2)]
    for run, value in zip(runs, (3, 4), strict=True):
        config = json.loads((run / "config.json").read_text())
        section, _, name = key.rpartition(".")
        (config["config"].setdefault(section, {}) if section else config["config"])[name] = value
        write_json(run / "config.json", config)
    (pool,) = pools_of(runs)
    assert pool.seeds == [1, 2]


@pytest.mark.parametrize(
    "other",
    [
        {"lr": 0.2},
        {"train": {"max_steps": 9}},
        {"ensemble_with": [asdict(Member("x", None))]},
        {"checkpoint": "last"},
        {"decode": {"beam": 1}},
        {"method": "dynamic"},
        {"seed": 1},
    ],
)
def test_what_differs_in_more_than_the_seed_is_not_pooled(tmp_path: Path, other: dict[str, Any]) -> None:
    nats = [4.0] * UNITS
    first = keep_run(tmp_path / "a", nats, 1)
    assert pools_of([first, keep_run(tmp_path / "b", nats, **{"seed": 2, **other})]) is None


@pytest.mark.parametrize(("lr", "pooled"), [(0.1, True), (0.2, False)])
def test_finetuned_runs_are_pooled_if_their_origins_differ_in_the_seed_only(
    tmp_path: Path, lr: float, pooled: bool
) -> None:
    nats = [4.0] * UNITS
    origins = [keep_run(tmp_path / f"{seed}", nats, seed, own) for seed, own in ((1, 0.1), (2, lr))]
    tuned = [
        keep_run(tmp_path / f"tuned-{origin.name}", nats, seed, train={"start_from": str(origin)})
        for seed, origin in enumerate(origins, start=1)
    ]
    assert bool(pools_of(tuned)) == pooled


def test_finetuned_runs_of_unknown_origins_are_not_pooled(tmp_path: Path) -> None:
    tuned = [
        keep_run(tmp_path / name, [4.0] * UNITS, seed, train={"start_from": f"gone-{name}"})
        for seed, name in ((1, "a"), (2, "b"))
    ]
    assert pools_of(tuned) is None
    keep_run(tmp_path / "b", [4.0] * UNITS, 2, train={"start_from": "gone-a"})
    assert len(pools_of(tuned)) == 1


def test_a_repeated_seed_is_no_pool_and_spares_the_others(tmp_path: Path) -> None:
    runs = [keep_run(tmp_path / f"a{seed}", [4.0 + seed] * UNITS, seed) for seed in (1, 2)]
    others = [keep_run(tmp_path / name, [3.0] * UNITS, 1, lr=0.2) for name in ("b", "c")]
    first, second = others
    assert [pool.runs[0] for pool in pools_of([first, *runs, second])] == [
        *map(str, (first, runs[0], second))
    ]
    assert [pool.runs for pool in pools_of([*runs, *others])] == [
        [*map(str, runs)],
        *([str(one)] for one in others),
    ]
    assert pools_of(others) is None


def test_both_kinds_of_evaluation_name_the_runs_of_an_ensemble() -> None:
    for kind in (StaticEvaluation, DialogEvaluation):
        assert "ensemble_with" in {field.name for field in fields(kind)}


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("where", "pooled"), [("default", True), ("--set", False)])
def test_a_key_of_a_later_version_counts_only_if_it_was_set(
    tmp_path: Path, where: str, pooled: bool, order: int
) -> None:
    old, new = (keep_run(tmp_path / str(seed), [4.0] * UNITS, seed) for seed in (1, 2))
    config = {"train": {"seed": 2}, "optim": {"lr": 0.1}, "head": {"newer": 3}}
    write_json(new / "config.json", {"family": "lm", "config": config, "provenance": {"head.newer": where}})
    assert bool(pools_of([old, new][::order])) == pooled


def test_runs_of_seeds_are_pooled_but_not_with_a_damaged_config(tmp_path: Path) -> None:
    runs = [keep_run(tmp_path / str(seed), [4.0] * UNITS, seed) for seed in (1, 2)]
    assert len(pools_of(runs)) == 1
    keep_run(runs[1], [4.0] * UNITS, 2, decode={"products": "bfloat16"})
    assert len(pools_of(runs)) == 1
    (runs[1] / "config.json").write_text("{")
    assert pools_of(runs) is None
