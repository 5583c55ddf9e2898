"""How training shows its progress: a bar on a terminal, plain lines elsewhere, TensorBoard where installed.

The engine reports to a :class:`Reporter` and never prints. No reporter can end a training run: a closed
pipe or a failing event writer silences that reporter alone.
"""

import importlib.util
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from lm.meter import Goal, Meter, Update, clock, validation_line


class Reporter(Protocol):
    """Receives what happens in training; no method raises."""

    def start(self, step: int, goal: Goal) -> None:
        """Training begins, or resumes, after ``step`` updates; ``goal.seconds`` counts from now."""

    def step(self, update: Update) -> None: ...

    def validated(self, step: int, metrics: Mapping[str, float], best: bool, averaged: bool = False) -> None:
        """Metrics at a step, the best so far or not; ``averaged``: of the average of the weights."""

    def note(self, line: str) -> None:
        """Something the user should know: a resume, a skipped batch, a failed save."""

    def close(self) -> None: ...


class NullReporter:
    """Reports nothing."""

    def start(self, step: int, goal: Goal) -> None: ...

    def step(self, update: Update) -> None: ...

    def validated(
        self, step: int, metrics: Mapping[str, float], best: bool, averaged: bool = False
    ) -> None: ...

    def note(self, line: str) -> None: ...

    def close(self) -> None: ...


class PlainReporter:
    """Plain lines to a stream, at most one for progress every ``seconds``."""

    def __init__(self, stream: TextIO, seconds: float = 10.0) -> None:
        self._stream: TextIO | None = stream
        self._seconds = seconds
        self._meter = Meter()
        self._due = 0.0

    def start(self, step: int, goal: Goal) -> None:
        self._meter.start(step, goal)
        self._due = time.monotonic() + self._seconds

    def step(self, update: Update) -> None:
        self._meter.step(update)
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._seconds
        remaining = self._meter.remaining
        self._write(self._meter.line() + ("" if remaining is None else f" · ETA {clock(remaining)}"))

    def validated(self, step: int, metrics: Mapping[str, float], best: bool, averaged: bool = False) -> None:
        self._write(validation_line(step, metrics, best, averaged))

    def note(self, line: str) -> None:
        self._write(line)

    def close(self) -> None: ...

    def _write(self, line: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # a closed pipe or stream must not end the training
            self._stream = None


class RichReporter:
    """A progress bar with time left, speed, loss, perplexity and learning rate."""

    def __init__(self, console: Console) -> None:
        self._meter = Meter()
        columns = (
            BarColumn(bar_width=24),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self._progress = Progress(*columns, console=console, refresh_per_second=4)
        self._bar = self._progress.add_task("", total=None)

    def start(self, step: int, goal: Goal) -> None:
        self._meter.start(step, goal)
        done = self._meter.done
        self._progress.reset(self._bar, start=True, total=None if done is None else 1.0)
        self._progress.update(self._bar, completed=done or 0.0)
        self._safely(self._progress.start)

    def step(self, update: Update) -> None:
        self._meter.step(update)
        self._progress.update(self._bar, completed=self._meter.done or 0.0, description=self._meter.line())

    def validated(self, step: int, metrics: Mapping[str, float], best: bool, averaged: bool = False) -> None:
        self.note(validation_line(step, metrics, best, averaged))

    def note(self, line: str) -> None:
        self._safely(lambda: self._progress.console.print(Text(line)))

    def close(self) -> None:
        self._safely(self._progress.stop)

    def _safely(self, action: Callable[[], None]) -> None:
        with suppress(OSError, ValueError):  # the terminal was closed, which must not end the training
            action()


class TensorboardReporter:
    """Scalars for TensorBoard in a folder; the first failure is noted once and switches it off."""

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._warn = warn
        self._writer: _ScalarWriter | None = None

    def start(self, step: int, goal: Goal) -> None:
        self._safely(lambda: self._open(step))

    def step(self, update: Update) -> None:
        for name, value in (("nll", update.nll), ("lr", update.lr), ("grad_norm", update.grad_norm)):
            self._scalar(f"train/{name}", value, update.step)

    def validated(self, step: int, metrics: Mapping[str, float], best: bool, averaged: bool = False) -> None:
        for name, value in metrics.items():
            self._scalar(f"valid/{name}", value, step)

    def note(self, line: str) -> None: ...

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._safely(writer.close)

    def _open(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # imports TensorBoard

        self._writer = SummaryWriter(str(self._folder), purge_step=step + 1)

    def _scalar(self, name: str, value: float, step: int) -> None:
        writer = self._writer
        if writer is not None and math.isfinite(value):
            self._safely(lambda: writer.add_scalar(name, value, step))

    def _safely(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # a foreign library's failure of any kind must not end the training
            self._writer = None
            self._warn(f"TensorBoard is switched off: {error!r}")


class _ScalarWriter(Protocol):
    def add_scalar(self, tag: str, value: float, step: int, /) -> None: ...

    def close(self) -> None: ...


class Reporters:
    """Passes everything on to several reporters."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = tuple(reporters)

    def start(self, step: int, goal: Goal) -> None:
        for reporter in self._reporters:
            reporter.start(step, goal)

    def step(self, update: Update) -> None:
        for reporter in self._reporters:
            reporter.step(update)

    def validated(self, step: int, metrics: Mapping[str, float], best: bool, averaged: bool = False) -> None:
        for reporter in self._reporters:
            reporter.validated(step, metrics, best, averaged)

    def note(self, line: str) -> None:
        for reporter in self._reporters:
            reporter.note(line)

    def close(self) -> None:
        for reporter in self._reporters:
            reporter.close()


def make_reporter(stream: TextIO, tensorboard: Path | None = None) -> Reporter:
    """A bar on a terminal, plain lines elsewhere; scalars in ``tensorboard`` if it is installed."""
    console = Console(file=stream)
    bar = console.is_terminal and not console.is_dumb_terminal
    shown: Reporter = RichReporter(console) if bar else PlainReporter(stream)
    if tensorboard is None or importlib.util.find_spec("tensorboard") is None:
        return shown
    return Reporters([shown, TensorboardReporter(tensorboard, shown.note)])
