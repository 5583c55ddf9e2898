"""Rows of the machine: M without a network, N for long."""

import gc
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lm.engine.config import OptimConfig, TrainConfig
from lm.engine.events import no_report
from lm.engine.loop import fit
from tests.matrix.crashes import golden, shared_lab
from tests.matrix.row import Case
from tests.support.crash_commands import DIALOG, LM
from tests.support.crash_driver import Case as Command
from tests.support.crash_driver import Lab, difference
from tests.support.crash_process import ENVIRONMENT, ROOT, interpreter
from tests.support.tiny_task import TinyTask, open_run, run_folder

SOAK = 10_000  # updates
GROWTH = 1 << 20  # bytes that 1,000 updates may add


@contextmanager
def offline(folder: Path) -> Iterator[Case]:
    """M: train, check, evaluate, chat or generate by the interpreter itself, without a network."""
    with shared_lab(folder) as lab:
        yield lambda rng, index: without_network(lab, (DIALOG, LM)[index]) if index < 2 else 0


def without_network(lab: Lab, command: Command) -> int:
    """The run is the one that a process with a network makes; everything after it works, too."""
    reference = lab.reference(command)
    place = lab.new_place(command)
    program = command.program
    last = ["chat", "run"] if program == "dialog" else ["generate", "run", "--max-tokens", "5"]
    for arguments in (command.arguments(lab), ["check", "run"], ["evaluate", "run"], last):
        isolated = ["unshare", "--map-root-user", "--net", *interpreter([program, *arguments])]
        environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
        ended = subprocess.run(
            isolated, cwd=place, env=environment, input="hello\n", capture_output=True, text=True, check=False
        )
        assert not ended.returncode, f"{program} {arguments}: {ended.stderr[-300:]}"
        if arguments == command.arguments(lab):
            assert not difference(lab.marks(command, place), reference.marks)
    shutil.rmtree(place)
    return 1


@contextmanager
def endurance(folder: Path) -> Iterator[Case]:
    """N: the memory of a process that trains for 10,000 updates; learning curves of 200."""
    with shared_lab(folder) as lab:
        yield lambda rng, index: grow(rng) if index == 0 else golden(lab, rng, index)


def grow(rng: random.Random) -> int:
    """A megabyte for 1,000 updates at most, once it is warm."""
    with run_folder() as folder:
        sizes = []
        for limit in (SOAK // 10, SOAK):
            with open_run(folder) as run:
                train = TrainConfig(
                    max_steps=limit, validate_every=1000, checkpoint_every=1000, log_every=100
                )
                fit(TinyTask(), train, OptimConfig(), run, no_report)
            gc.collect()
            sizes.append(resident())
    grown = (sizes[1] - sizes[0]) / (0.9 * SOAK / 1000)
    assert grown < GROWTH, f"{grown:,.0f} bytes for 1,000 updates"
    return 1


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
