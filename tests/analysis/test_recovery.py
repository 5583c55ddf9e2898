"""Losses after surprises."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lm.analysis.recovery import STEPS, recovery, recovery_tables
from lm.bootstrap import Resamples
from lm.cli import main
from lm.errors import ConfigError, DataError
from lm.language.evaluate import BLOCK
from tests.support.tiny_lm import cells, write_run


def test_all_are_asked_after_the_same_surprises() -> None:
    rng = np.random.default_rng(1)
    slow, fast = rng.uniform(1, 2, (2, 200))
    surprises = np.arange(10, 190, 20)
    slow[surprises] = fast[surprises] = 9.0
    fast[surprises + 1] -= 0.5
    measured, runs = recovery({"slow": slow, "fast": fast}, share=len(surprises) / 200)
    assert measured.surprises == len(surprises)
    assert measured.least == 9
    found = runs["fast"]
    assert found.mean == pytest.approx(fast.mean())
    for step in range(1, STEPS + 1):
        assert found.after[step - 1] == pytest.approx(fast[surprises + step].mean())
        difference = slow[surprises + step] - fast[surprises + step]
        assert found.gain_after[step - 1] == pytest.approx(difference.mean())
    assert found.excess_after == [None] * STEPS
    assert found.gain == pytest.approx((slow - fast).mean())
    assert set(runs["slow"].gain_after) == {0.0}
    table, *notes = recovery_tables(measured, runs)
    assert [row["95 % from, nats"] for row in cells(table)] == ["–", "–"]
    assert "5 blocks of 1,000 tokens, but 1 have any" in str(notes[-1])


def test_a_surprise_of_any_model_counts() -> None:
    calm, surprised = np.random.default_rng(1).uniform(1, 2, (2, 200))
    surprised[np.arange(10, 190, 20)] = 9.0
    measured, _ = recovery({"calm": calm, "surprised": surprised}, share=9 / 200)
    assert measured.least >= (9 + 1) / 2


def test_intervals_are_of_resampled_blocks_since_neighbours_resemble_each_other() -> None:
    rng = np.random.default_rng(2)
    blocks, each = 20, 25
    slow = rng.uniform(1, 2, blocks * BLOCK)
    of_block = rng.normal(0, 0.5, blocks)
    surprises = np.arange(blocks * each) * (BLOCK // each)
    fast = slow.copy()
    fast[surprises + 1] -= of_block.repeat(each)  # no gain but after surprises
    slow[surprises] = fast[surprises] = 9.0
    measured, runs = recovery({"slow": slow, "fast": fast}, share=len(surprises) / len(slow), resamples=1000)
    assert (measured.surprises, measured.blocks) == (blocks * each, blocks)
    counts = Resamples(blocks, 1000, 1)
    rest = 1 - each / BLOCK  # of a gain at one token of BLOCK / each, which counts for the mean, too
    low, high = np.quantile(counts @ of_block / blocks * rest, (0.025, 0.975))
    found = runs["fast"]
    assert found.excess_after[0] == pytest.approx((of_block.mean() * rest, low, high))
    assert found.excess_after[0][0] == pytest.approx(found.gain_after[0] - found.gain)
    independent = 2 * 1.96 * of_block.std() / (blocks * each) ** 0.5
    assert high - low > 3 * independent
    table, *notes = recovery_tables(measured, runs)
    shown = cells(table)[1]
    assert (shown["95 % from, nats"], shown["to, nats"]) == (f"{low:.4f}", f"{high:.4f}")
    row = list(csv.DictReader(table.csv().splitlines()))[1]
    assert (float(row["gain in nats"]), float(row["to, nats"])) == (found.gain, found.excess_after[0].high)
    assert len(notes) == 1


def test_a_surprise_has_tokens_after_it() -> None:
    rising = np.arange(10.0)
    measured, _ = recovery({"a": rising}, share=1)
    assert (measured.surprises, measured.share) == (10 - STEPS, 0.5)
    with pytest.raises(DataError, match="10 tokens have too few surprises"):
        recovery({"a": rising}, share=0.5)
    for share in (0, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="--share"):
            recovery({"a": rising}, share=share)


def test_the_command_shows_every_run(
    ending: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    code, out, err = ending(main, "analyze", "recovery", "a", "b", "--json", "r.json")
    assert (code, err) == (0, "")
    result = json.loads(Path("r.json").read_text())
    assert list(result["runs"]) == ["a", "b"]
    assert result["runs"]["b"]["gain_after"] == [0.0] * STEPS
    assert result["runs"]["b"]["excess_after"] == [None] * STEPS
    assert "surprises" in out
