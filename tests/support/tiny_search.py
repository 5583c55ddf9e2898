"""A search over trainings of a tiny task: real runs in real folders, a fraction of a second each."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dialog.config import DialogConfig
from lm.config.load import Resolved, load_config
from lm.engine.events import Event, Note, Reporter, no_report
from lm.engine.loop import FitResult, Verdict, fit
from lm.runs.checkpoint import CheckpointStore
from lm.runs.run import Run
from lm.tuning.search import Search, SearchPlan
from lm.tuning.space import load_space
from tests.support.tiny_task import TinyTask

SPACE = """
[space]
"optim.lr" = {low = 1e-3, high = 0.3, log = true}
"optim.clip_norm" = {low = 0.1, high = 5}
"train.accumulate" = {low = 1, high = 2}
"optim.betas" = {choices = [[0.9, 0.99], [0.8, 0.9]]}
"""
CONFIG = "[train]\nmax_steps = 4\nvalidate_every = 2\ncheckpoint_every = 1\nbatch_size = 3\n"

N = 12  # trials: more than the ten random ones that TPE begins with
LOSSES = 0  # calls of the loss in this process


def plan(folder: Path, **changes: Any) -> SearchPlan[DialogConfig]:
    """The plan of files that it writes into a folder."""
    config, space = folder / "tiny.toml", folder / "space.toml"
    config.write_text(CONFIG)
    space.write_text(changes.pop("space", SPACE))
    base = load_config(str(config), DialogConfig, family="dialog", overrides=changes.pop("overrides", ()))
    parameters = load_space(str(space), base, DialogConfig, family="dialog")
    settings: dict[str, Any] = {"sampler": "tpe", "seed": 1, "prune": True} | changes
    return SearchPlan(str(config), base, parameters, **settings)


def train(
    resolved: Resolved[DialogConfig], folder: Path, report: Reporter, verdict: Verdict | None
) -> FitResult:
    """Trains the tiny task; TINY_BAD_LR names a rate from which on its loss is not finite."""
    config = resolved.config
    task = TinyTask()
    if config.optim.lr > float(os.environ.get("TINY_BAD_LR", "inf")):
        task.faults.nan_loss = lambda call: True
    task.faults.on_loss = _count
    with Run.open(folder, resolved, resumable_keys=frozenset()) as run:
        return fit(task, config.train, config.optim, run, report, verdict)


def _count(call: int) -> None:
    """TINY_STRIKE = signal:call sends this process a signal at the call, counted over all trainings."""
    global LOSSES
    LOSSES += 1
    number, _, at = os.environ.get("TINY_STRIKE", "").partition(":")
    if number and int(at) == LOSSES:
        os.kill(os.getpid(), int(number))


def search(
    folder: Path,
    planned: SearchPlan[DialogConfig],
    trials: int,
    note: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Runs a search in this process; returns its trials."""

    def noted(event: Event) -> None:
        if isinstance(event, Note):
            note(event.line)

    begun = Search(folder, planned)
    begun.run(trials, train, lambda run: no_report, noted)
    return begun.trials.rows()


def forked(
    folder: Path, planned: SearchPlan[DialogConfig], trials: int, *, strike: tuple[int, int] | None = None
) -> Callable[[], int]:
    """Runs a search in a forked process; the result waits for its end: its exit code or −signal."""
    if pid := os.fork():
        return lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 70
    try:
        global LOSSES
        LOSSES = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.environ["TINY_STRIKE"] = f"{int(strike[0])}:{strike[1]}" if strike else ""
        search(folder, planned, trials)
        code = 0
    except Exception as error:
        code = getattr(error, "exit_code", 70)
        sys.stderr.write(f"{error}\n")
    finally:
        os._exit(code)


def runs_of(folder: Path, count: int) -> list[tuple[str, bytes]]:
    """State and log of the runs of a search."""
    runs = [folder / "trials" / str(number) for number in range(count)]
    return [
        (CheckpointStore(run / "checkpoints").open("last").state_sha256, (run / "metrics.jsonl").read_bytes())
        for run in runs
    ]
