"""Faults of one process of a training: all end with one line and the documented code, or go on alike."""

import json
from pathlib import Path

import pytest

from tests.parallel.test_training import LM, outcome
from tests.support.launching import command, ended
from tests.support.tiny_training import write_corpus

pytestmark = pytest.mark.slow
FAULTS = {  # rank, exit code, and what the line says
    "memory": (1, 6, "rank 1: out of memory"),
    "disk": (0, 4, "rank 0: runs/tiny"),
    "config": (1, 7, "rank 1: its config differs from rank 0's"),
    "corpus": (1, 7, "rank 1: its train_sha256 differs from rank 0's"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_corpus(tmp_path, LM, train=120, valid=30, longest=9)


def line(fault: str, rank: int, call: int, processes: int, *arguments: str) -> list[str]:
    fixed = (fault, str(rank), str(call), str(processes), "lm", "train", "tiny.toml")
    return command("tests.support.faulty_rank", *fixed, *arguments)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_process_ends_all_with_one_line(folder: Path, fault: str) -> None:
    rank, code, said = FAULTS[fault]
    end = ended(folder, line(fault, rank, 7, 2, "--run", str(folder / "runs/tiny")))
    told = [one for one in end.stderr.splitlines() if "rank " in one or "error" in one]
    assert (end.returncode, len(told)) == (code, 1), end.stderr
    assert told[0].startswith(said.replace("runs/tiny", str(folder / "runs/tiny")))
    assert not any(path.suffix == ".tmp" for path in folder.rglob("*"))


def test_after_a_lack_of_memory_the_same_command_resumes(folder: Path) -> None:
    assert ended(folder, line("memory", 1, 7, 2)).returncode == 6
    resumed = ended(folder, command("lm", "train", "tiny.toml"))
    assert resumed.returncode == 0, resumed.stderr
    assert ended(folder, command("lm", "train", "tiny.toml", "--run", "alone")).returncode == 0
    assert outcome(folder / "runs/tiny") == outcome(folder / "alone")


def test_a_loss_that_is_not_finite_on_one_process_skips_the_update_of_all(folder: Path) -> None:
    """As in one process, where the same shard of the same update is not finite."""
    for run, rank, call, processes in (("two", 1, 3, 2), ("one", 0, 7, 1)):
        end = ended(folder, line("nan", rank, call, processes, "--run", run))
        assert end.returncode == 0, end.stderr
        log = map(json.loads, (folder / run / "metrics.jsonl").read_text().splitlines())
        assert [record["step"] for record in log if record.get("event") == "skipped"] == [2]
    assert outcome(folder / "two") == outcome(folder / "one")
