"""Trainings that torchrun and ``--processes`` start: exit codes, signals, and restarts after a loss."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.launching import command, ended, started, wait_for, workers
from tests.support.outcomes import outcome
from tests.support.shared_training import LM, trained
from tests.support.tiny_training import write_corpus

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_corpus(tmp_path, LM, train=120, valid=30, longest=9)


@pytest.mark.parametrize(("fault", "rank", "code"), [("memory", 1, 6), ("disk", 0, 4), ("corpus", 1, 7)])
def test_the_exit_code_is_that_of_the_fault(folder: Path, fault: str, rank: int, code: int) -> None:
    fixed = (fault, str(rank), "7", "2", "lm", "train", "tiny.toml", "--run", str(folder / "run"))
    end = ended(folder, command("tests.support.faulty_rank", *fixed))
    told = [line for line in end.stderr.splitlines() if line.startswith("rank ") or "error" in line]
    assert (end.returncode, len(told)) == (code, 1), end.stderr


def test_torchrun_gives_the_bits_of_one_process(folder: Path) -> None:
    line = command("lm", "train", "tiny.toml", torchrun=("--nproc-per-node", "4"))
    assert ended(folder, line).returncode == 0
    assert outcome(folder / "runs/tiny") == trained(folder, "alone", 1)


def test_a_killed_process_brings_all_back(folder: Path) -> None:
    """``torchrun --max-restarts`` starts all again, and the end is that of an undisturbed run."""
    settings = ("--set", "train.max_steps=300", "--set", "train.checkpoint_every=20")
    torchrun = ("--nproc-per-node", "2", "--max-restarts", "2")
    line = command("lm", "train", "tiny.toml", *settings, torchrun=torchrun)
    with started(folder, line) as process:
        wait_for(folder / "runs/tiny/checkpoints/step-00000040")
        os.kill(workers(process)[-1], signal.SIGKILL)
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    alone = trained(folder, "alone", 1, "train.max_steps=300", "train.checkpoint_every=20")
    assert outcome(folder / "runs/tiny") == alone


def test_a_silent_process_ends_the_others_and_is_named(folder: Path) -> None:
    settings = ("--set", "train.max_steps=100000", "--set", "train.exchange_minutes=0.1")
    with started(folder, command("lm", "train", "tiny.toml", "--processes", "2", *settings)) as process:
        wait_for(folder / "runs/tiny/checkpoints/step-00000004")
        os.kill(workers(process)[-1], signal.SIGSTOP)
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 7, output
    assert "\nrank 1 is silent for longer than train.exchange_minutes = 0.1; run the same command" in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("whom", ["launcher", "rank"])
def test_a_signal_saves_once_and_ends_all(folder: Path, whom: str, number: signal.Signals) -> None:
    line = command("lm", "train", "tiny.toml", "--processes", "2", "--set", "train.max_steps=100000")
    with started(folder, line) as process:
        wait_for(folder / "runs/tiny/checkpoints/step-00000004")
        os.kill(process.pid if whom == "launcher" else workers(process)[-1], number)
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 75, output
    [line] = [line for line in output.splitlines() if "interrupted" in line]
    assert line.endswith("is saved; run the same command again to resume")
    assert "rank" not in output.replace(line, "")
