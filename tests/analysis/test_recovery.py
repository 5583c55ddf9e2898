"""Losses after surprises."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lm.analysis.recovery import STEPS, recovery, recovery_tables
from lm.cli import main
from lm.errors import ConfigError, DataError
from tests.support.tiny_lm import write_run


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
        error = difference.std(ddof=1) / len(surprises) ** 0.5
        assert found.half_interval[step - 1] == pytest.approx(1.96 * error)
    assert found.gain == pytest.approx((slow - fast).mean())
    assert set(runs["slow"].gain_after) == {0.0}
    assert len(recovery_tables(measured, runs)[0].rows) == 2


def test_a_surprise_has_tokens_after_it() -> None:
    rising = np.arange(10.0)
    assert recovery({"a": rising}, share=1)[0].surprises == 10 - STEPS
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
    assert "surprises" in out
