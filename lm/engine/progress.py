"""Reporters of a training: a bar on a terminal, plain lines elsewhere, TensorBoard if installed.

The engine reports events and never prints. No reporter can end a training. A closed pipe or a failing event
writer silences only its own reporter.
"""

import importlib.util
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import ProgressColumn, Task
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lm.engine.events import Ended, Event, Goal, Note, Reporter, Started, Update, Validated, Validating
from lm.errors import visible
from lm.measures import perplexity
from lm.numbers import number

_BAR, _LEAST_BAR = 24, 8  # cells of the bar
_LABELLED = 30  # columns of a terminal with room for the name of the time left


class PlainReporter:
    """Plain lines to a stream, with at most one progress line every ``seconds``."""

    def __init__(self, stream: TextIO, seconds: float = 10.0) -> None:
        self._stream: TextIO | None = stream
        self._seconds = seconds
        self._meter = Meter()
        self._due = 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                self._meter.start(event.step, event.goal)
                self._due = time.monotonic() + self._seconds
            case Update():
                self._meter.step(event)
                self._progress()
            case Validated():
                self._meter.pause()
                self._write(event.line())
            case Note():
                self._write(visible(event.line))

    def _progress(self) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._seconds
        remaining = self._meter.remaining
        self._write(self._meter.line() + ("" if remaining is None else f" · ETA {clock(remaining)}"))

    def _write(self, line: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # a closed pipe or stream must not end the training
            self._stream = None


class RichReporter:
    """A live line: time left, bar, step, loss, perplexity, speed and learning rate, as many as fit."""

    def __init__(self, console: Console) -> None:
        self._meter, self._console = Meter(), console
        self._live = Live(
            get_renderable=self._line, console=console, refresh_per_second=4, redirect_stdout=False,
            redirect_stderr=False,
        )  # fmt: skip

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                self._meter.start(event.step, event.goal)
            case Update():
                self._meter.step(event)
                self._safely(self._live.start)  # not earlier, because a finished run has no update to show
            case Validating():
                self._meter.validate()
            case Validated():
                self._meter.pause()
                self._print(event.line())
            case Note():
                self._print(event.line)
            case Ended():
                self._safely(self._live.stop)

    def _print(self, line: str) -> None:
        self._safely(lambda: self._console.print(Text(visible(line))))

    def _line(self) -> RenderableType:
        """The line, cut to the terminal width: the learning rate is dropped first, the time left last."""
        meter, room = self._meter, self._console.width
        remaining = "" if meter.remaining is None else clock(meter.remaining)
        if remaining and room >= _LABELLED:
            remaining = f"ETA {remaining}"
        done = meter.done
        bar = 0 if done is None else min(_BAR, room - len(remaining) - 2, max(_LEAST_BAR, room // 5))
        parts = [Text(remaining)] if remaining else []
        text = meter.line(room - len(remaining) - max(0, bar) - 3)
        line = Table.grid(padding=(0, 1))
        cells: list[RenderableType] = [*parts]
        if bar >= _LEAST_BAR:
            cells.append(ProgressBar(total=1.0, completed=done or 0.0, width=bar))
        line.add_row(*cells, Text(text, no_wrap=True))
        return line

    def _safely(self, action: Callable[[], None]) -> None:
        with suppress(OSError, ValueError):  # the terminal was closed, which must not end the training
            action()


class TimeLeft(ProgressColumn):
    """Time left at the mean pace so far; empty before the first step.

    The field ``begun`` of a task is what was done when its time began.
    """

    def render(self, task: Task) -> Text:
        elapsed, total = task.elapsed, task.total
        done = task.completed - task.fields.get("begun", 0)
        left = elapsed * (total - task.completed) / done if elapsed and done and total else None
        return Text("" if left is None else f"ETA {clock(left)}")


class TensorboardReporter:
    """Scalars for TensorBoard in a folder; the first failure is reported and switches the reporter off."""

    def __init__(self, folder: Path, warn: Reporter) -> None:
        self._folder = folder
        self._warn = warn
        self._writer: Any = None  # of tensorboard

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                self._safely(lambda: self._open(event.step))
            case Update():
                for name in ("nll", "lr", "grad_norm"):
                    self._scalar(f"train/{name}", getattr(event, name), event.step)
            case Validated():
                for name, value in event.metrics.items():
                    self._scalar(f"valid/{name}", value, event.step)
            case Ended():
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
            self._warn(Note(f"TensorBoard is switched off: {error!r}"))


def together(reporters: Sequence[Reporter]) -> Reporter:
    """Reporter that passes every event to each of several reporters."""

    def report(event: Event) -> None:
        for reporter in reporters:
            reporter(event)

    return report


def make_reporter(stream: TextIO, tensorboard: Path | None = None) -> Reporter:
    """A bar on a terminal, plain lines elsewhere; scalars in ``tensorboard`` if it is installed."""
    console = Console(file=stream)
    bar = console.is_terminal and not console.is_dumb_terminal
    shown: Reporter = RichReporter(console) if bar else PlainReporter(stream)
    if tensorboard is None or importlib.util.find_spec("tensorboard") is None:
        return shown
    return together([shown, TensorboardReporter(tensorboard, shown)])


class Meter:
    """Smoothed loss, speed, and completed share of a training. A thread may read while another counts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=50)  # (when, nll · tokens, tokens)
        self.start(0, Goal(0, 0.0))

    def start(self, step: int, goal: Goal) -> None:
        """Begin to measure at an update, towards a goal."""
        self._goal, self._first_step, self._started = goal, step, self._clock()
        self._began = self._seen = self._started  # of the first update, and the last event
        self._paused = 0.0  # seconds of validations
        self._validating: float | None = None  # when a validation began
        self._last = Update(step, 0, math.nan, math.nan, math.nan, 0)
        self._recent.clear()
        self._recent.append((self._started, 0.0, 0))

    def step(self, update: Update) -> None:
        """Count an update."""
        self._last, self._seen = update, self._clock()
        if math.isfinite(update.nll):
            self._recent.append((self._seen - self._paused, update.nll * update.tokens, update.tokens))

    def validate(self) -> None:
        """Begin a validation, which :meth:`pause` ends."""
        self._validating = self._clock()

    def pause(self) -> None:
        """Leave the time since the last event, a validation, out of the speed.

        One before the first update is also left out of the time left, because the updates do not repeat it.
        """
        now = self._clock()
        self._paused += now - self._seen
        self._seen, self._validating = now, None
        if self._last.step == self._first_step:
            self._began = now

    @property
    def nll(self) -> float:
        """Nats per token over the last 50 updates."""
        recent = tuple(self._recent)
        tokens = sum(entry[2] for entry in recent)
        return sum(entry[1] for entry in recent) / tokens if tokens else math.nan

    @property
    def tokens_per_second(self) -> float:
        """Speed over the last 50 updates, without validations."""
        recent = tuple(self._recent)
        seconds = recent[-1][0] - recent[0][0]
        return sum(entry[2] for entry in recent[1:]) / seconds if seconds > 0 else 0.0

    @property
    def done(self) -> float | None:
        """Completed share of the training, by the limit that ends it first; None without a limit."""
        shares = []
        if self._goal.steps:
            shares.append(self._last.step / self._goal.steps)
        if self._goal.seconds:
            shares.append((self._clock() - self._started) / self._goal.seconds)
        return min(1.0, max(shares)) if shares else None

    @property
    def remaining(self) -> float | None:
        """Seconds left at the mean pace of updates and the validations among them; None if unknown."""
        now = self._clock()
        left = []
        if self._goal.seconds:
            left.append(max(0.0, self._started + self._goal.seconds - now))
        if self._goal.steps and self._last.step > self._first_step:
            pace = (now - self._began) / (self._last.step - self._first_step)
            left.append(max(0.0, pace * (self._goal.steps - self._last.step)))
        return min(left) if left else None

    def line(self, room: int | None = None) -> str:
        """Steps, perplexity, loss, speed, epoch and learning rate: as many as fit into ``room`` columns.

        The time of a validation that goes on follows the steps.
        """
        update, since = self._last, self._validating
        steps = f"{update.step:,}/{self._goal.steps:,}" if self._goal.steps else f"{update.step:,}"
        parts = (
            f"step {steps}",
            *(() if since is None else [f"validating {clock(self._clock() - since)}"]),
            f"ppl {number('ppl', perplexity(self.nll))}",
            f"nll {number('nll', self.nll)}",
            f"{number('tokens', round(self.tokens_per_second))} tokens/s",
            f"epoch {update.epoch}",
            f"lr {update.lr:.3g}",
        )
        lines = [" · ".join(parts[:count]) for count in range(len(parts), 0, -1)]
        return next((line for line in lines if room is None or len(line) <= room), "")


def clock(seconds: float) -> str:
    """``1:02:03`` for 3,723 seconds."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"
