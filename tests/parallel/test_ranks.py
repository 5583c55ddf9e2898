"""Trainings by several ranks: faults and signals end all alike, with one line."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lm.cli import main
from lm.runs.checkpoint import CheckpointStore
from tests.support.faulty_rank import faulty
from tests.support.forked import ranks
from tests.support.outcomes import outcome
from tests.support.shared_training import LM
from tests.support.tiny_lm import write_run
from tests.support.tiny_training import write_corpus

FAULTS = {  # rank, exit code, and the beginning of the line
    "memory": (1, 6, "rank 1: out of memory"),
    "disk": (0, 4, "rank 0: runs/tiny"),
    "config": (1, 7, "rank 1: its config differs from rank 0's"),
    "corpus": (1, 7, "rank 1: its train_sha256 differs from rank 0's"),
}
Ending = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_corpus(tmp_path, LM, train=120, valid=30, longest=9)


@pytest.mark.parametrize("signalled", [pytest.param([0], marks=pytest.mark.slow), [1], [0, 1]])
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
        assert len(started.errors) == 1, started.output
        [line] = started.errors
        assert line.endswith(": interrupted: step 4 is saved; run the same command again to resume")
    for run in ("two", "one"):
        assert ending(main, "train", "tiny.toml", "--run", run)[0] == 0
    assert outcome(folder / "two") == outcome(folder / "one")


def test_a_signal_to_one_rank_saves_once_and_ends_all(folder: Path) -> None:
    line = ("lm", "train", "tiny.toml", "--run", "run", "--set", "train.max_steps=100000")
    with ranks(folder, 2, *line) as started:
        started.wait_for("run/checkpoints/step-00000008")
        started.signal(1, signal.SIGINT)
        assert started.ended(seconds=20).codes == [75, 75], started.output
        assert len(started.errors) == 1, started.output
        said = re.fullmatch(r"rank \d: interrupted: step (\d+) is saved; .* to resume", started.errors[0])
    assert said
    assert CheckpointStore(folder / "run/checkpoints").open("last").step == int(said[1])


@pytest.mark.parametrize(
    ("number", "size"),
    [
        pytest.param(signal.SIGKILL, 2, marks=pytest.mark.slow),
        (signal.SIGKILL, 3),
        (signal.SIGSTOP, 3),
    ],
    ids=str,
)
def test_a_rank_that_is_killed_or_hangs_is_named_in_one_line(
    folder: Path, number: signal.Signals, size: int
) -> None:
    waits = 10 if number is signal.SIGKILL else 0.05
    settings = ("train.max_steps=100000", f"train.exchange_minutes={waits}", "train.shards=12")
    line = ("lm", "train", "tiny.toml", *(part for setting in settings for part in ("--set", setting)))
    with ranks(folder, size, *line) as started:
        started.wait_for("runs/tiny/checkpoints/step-00000008")
        started.signal(1, number)
        started.ended(seconds=20, patience=30 if number is signal.SIGKILL else 2)
        assert started.codes == [7, -signal.SIGKILL, *[7] * (size - 2)], started.output
        ended = (
            "lost" if number is signal.SIGKILL else f"silent for longer than train.exchange_minutes = {waits}"
        )
        again = "run the same command again to resume"
        assert started.errors == [f"rank 1 is {ended}; {again}"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_rank_ends_all_with_one_line(folder: Path, fault: str) -> None:
    rank, code, said = FAULTS[fault]
    line = ("lm", "train", "tiny.toml", "--run", str(folder / "runs/tiny"))
    with ranks(folder, 2, *line, prepare=faulty(fault, rank, 7)) as started:
        assert started.ended().codes == [code, code], started.output
        assert len(started.errors) == 1, started.output
        [told] = started.errors
    assert told.startswith(said.replace("runs/tiny", str(folder / "runs/tiny")))
    assert not any(path.suffix == ".tmp" for path in folder.rglob("*"))


def test_after_a_lack_of_memory_the_same_command_resumes(folder: Path, ending: Ending) -> None:
    with ranks(folder, 2, "lm", "train", "tiny.toml", prepare=faulty("memory", 1, 7)) as started:
        assert started.ended().codes == [6, 6]
    for run in ("runs/tiny", "alone"):
        assert ending(main, "train", "tiny.toml", "--run", run)[0] == 0
    assert outcome(folder / "runs/tiny") == outcome(folder / "alone")


def test_a_loss_that_is_not_finite_on_one_rank_skips_the_update_of_all(folder: Path) -> None:
    """As in one process, where the same shard of the same update is not finite."""
    for run, rank, call, size in (("two", 1, 3, 2), ("one", 0, 7, 1)):
        line = ("lm", "train", "tiny.toml", "--run", run)
        with ranks(folder, size, *line, prepare=faulty("nan", rank, call)) as started:
            assert started.ended().codes == [0] * size, started.output
        log = map(json.loads, (folder / run / "metrics.jsonl").read_text().splitlines())
        assert [record["step"] for record in log if record.get("event") == "skipped"] == [2]
    assert outcome(folder / "two") == outcome(folder / "one")


def test_an_error_of_the_command_line_is_shown_once(folder: Path) -> None:
    for name, said in (
        ("none.toml", "none.toml: no such file"),
        ("--nonsense", "--nonsense: no such option"),
    ):
        with ranks(folder, 2, "lm", "train", name) as started:
            assert 2 in started.ended().codes, started.output
            assert started.output.count(said) == 1, started.output


def test_an_output_that_cannot_be_written_is_shown_once(folder: Path) -> None:
    write_run(folder / "run")
    with ranks(folder, 2, "lm", "score", "run", "train.txt", "--output", "none/scores.jsonl") as started:
        assert started.ended().codes[0] == 4, started.output
        assert started.errors == ["rank 0: none/scores.jsonl: its folder does not exist; create it first"]
