"""Row A6: one of two processes of a training is killed, and another number of processes goes on."""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.matrix.row import Case
from tests.support.launching import command, ended, started, wait_for, workers
from tests.support.outcomes import outcome
from tests.support.shared_training import LM
from tests.support.tiny_training import write_corpus

STEPS = ("--set", "train.max_steps=60", "--set", "train.checkpoint_every=5")
LOST = 7  # exit code of processes that have lost another
LATEST = 2.0  # seconds after the first commit in which a rank is killed


@contextmanager
def kill_a_rank(folder: Path) -> Iterator[Case]:
    """A6: after a kill, the others end with one line, and the same command ends with the same bits."""
    write_corpus(folder, LM, train=120, valid=30, longest=9)
    train(folder, "undisturbed", 1)

    def case(rng: random.Random, index: int) -> int:
        run = f"run-{index}"
        line = command("lm", "train", "tiny.toml", "--run", run, "--processes", "2", *STEPS)
        with started(folder, line) as process:
            wait_for(folder / run / "checkpoints/step-00000005")
            time.sleep(rng.uniform(0, LATEST))
            ranks = workers(process)
            if len(ranks) < 2:
                return 0  # it has ended
            os.kill(rng.choice(ranks), signal.SIGKILL)
            output, _ = process.communicate(timeout=200)
        if process.returncode == 0:
            return 0
        told = [line for line in output.splitlines() if line.startswith("rank ")]
        assert (process.returncode, len(told)) in ((LOST, 1), (128 + signal.SIGKILL, 1)), output
        assert "internal error" not in output, output
        train(folder, run, rng.choice((1, 2, 4)))
        assert outcome(folder / run) == outcome(folder / "undisturbed")
        return 1

    yield case


def train(folder: Path, run: str, processes: int) -> None:
    line = command("lm", "train", "tiny.toml", "--run", run, "--processes", str(processes), *STEPS)
    end = ended(folder, line)
    assert end.returncode == 0, end.stderr
