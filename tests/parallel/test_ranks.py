"""Trainings by several ranks: faults and signals end all alike, with one line."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lm.cli import main
from tests.parallel.test_training import LM, outcome
from tests.support.faulty_rank import faulty
from tests.support.forked import ranks
from tests.support.tiny_training import write_corpus

Ending = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_corpus(tmp_path, LM, train=120, valid=30, longest=9)


@pytest.mark.parametrize("signalled", [[0], [1], [0, 1]])
def test_a_signal_in_a_long_validation_ends_all_ranks_soon(
    folder: Path, signalled: list[int], ending: Ending
) -> None:
    line = ("lm", "train", "tiny.toml", "--run", "two")
    with ranks(folder, 2, *line, prepare=faulty("validation")) as started:
        started.wait_for("validating-0")
        started.wait_for("validating-1")
        for rank in signalled:
            started.signal(rank, signal.SIGTERM)
        started.ended(seconds=20)
        assert started.codes == [75, 75], started.output
        assert started.output.count("interrupted") == 1, started.output
        assert "interrupted: step 4 is saved; run the same command again to resume" in started.output
    for run in ("two", "one"):
        assert ending(main, "train", "tiny.toml", "--run", run)[0] == 0
    assert outcome(folder / "two") == outcome(folder / "one")
