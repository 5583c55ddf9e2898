"""A command as several processes, of which rank FAULTY has a fault.

    python -m tests.support.faulty_rank FAULT RANK CALL PROCESSES lm train CONFIG …

The fault comes in the given call of a training's forward pass, counted in that process, or at its start.
"""

import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dialog.cli import main as dialog
from lm.cli import main as lm
from lm.engine.update import StepLoss, Updater
from lm.language.task import LmTask
from lm.launched import rank_and_size, started_by_torchrun
from lm.parallel.launch import launched
from tests.support.forked import Prepare

SLICES, SLICE_SECONDS = 600, 0.1  # of a long validation


def main() -> None:
    fault, rank, call, processes, program, *arguments = sys.argv[1:]
    if int(processes) > 1 and not started_by_torchrun():
        sys.exit(launched("tests.support.faulty_rank", sys.argv[1:], int(processes)))
    if not started_by_torchrun() or rank_and_size()[0] == int(rank):
        arguments = afflicted(fault, int(call), arguments)
    {"lm": lm, "dialog": dialog}[program](arguments)


def faulty(fault: str, rank: int = 0, call: int = 0) -> Prepare:
    """The fault for :func:`tests.support.forked.ranks`."""
    return partial(_afflicted_on, fault, rank, call)


def _afflicted_on(fault: str, faulty: int, call: int, rank: int, arguments: list[str]) -> list[str]:
    return afflicted(fault, call, arguments) if rank == faulty or fault == "validation" else arguments


def afflicted(fault: str, call: int, arguments: list[str]) -> list[str]:
    """Prepare the fault in this process; returns the arguments of its command."""
    if fault == "config":
        return [*arguments, "--set", "train.seed=99"]
    if fault == "corpus":
        other = Path("other")
        other.mkdir()
        for split in ("train.txt", "valid.txt"):
            (other / split).write_text(Path(split).read_text().replace("the cat", "the dogs"))
        (other / "tiny.toml").write_bytes(Path("tiny.toml").read_bytes())
        os.chdir(other)
    if fault == "disk":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    if fault in ("memory", "nan"):
        break_forward(fault, call)
    if fault == "validation":
        prolong_validation()
    return arguments


def break_forward(fault: str, call: int) -> None:
    """Allocate too much in one call of the forward pass, or make its loss NaN."""
    calls, forward = 0, Updater.forward

    def broken(self: Updater[Any], batch: Any) -> StepLoss:
        nonlocal calls
        calls += 1
        loss = forward(self, batch)
        if calls != call:
            return loss
        if fault == "memory":
            torch.empty(1 << 60, dtype=torch.uint8)
        return StepLoss(loss.objective * float("nan"), loss.nll, loss.tokens, loss.lr_scale)

    Updater.forward = broken  # type: ignore[method-assign]


def prolong_validation() -> None:
    """Let the validation last a minute; the file ``validating-RANK`` shows that it has begun."""
    validation = LmTask.validation

    def long(self: LmTask) -> Iterator[tuple[float, int]]:
        Path(f"validating-{rank_and_size()[0]}").touch()
        for _ in range(SLICES):
            time.sleep(SLICE_SECONDS)
            yield 0.0, 0
        yield from validation(self)

    LmTask.validation = long  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
