"""Progress numbers of a training and their text: smoothed loss, speed, time left."""

import math
import time
from collections import deque
from collections.abc import Callable

from lm.engine.events import Goal, Update
from lm.measures import perplexity
from lm.numbers import number


class Meter:
    """Smoothed loss, speed, and completed share of a training."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=50)  # (when, nll · tokens, tokens)
        self.start(0, Goal(0, 0.0))

    def start(self, step: int, goal: Goal) -> None:
        self._goal, self._first_step, self._started = goal, step, self._clock()
        self._last = Update(step, 0, math.nan, math.nan, math.nan, 0)
        self._recent.clear()
        self._recent.append((self._started, 0.0, 0))

    def step(self, update: Update) -> None:
        self._last = update
        if math.isfinite(update.nll):
            self._recent.append((self._clock(), update.nll * update.tokens, update.tokens))

    @property
    def nll(self) -> float:
        """Nats per token over the last 50 updates."""
        tokens = sum(entry[2] for entry in self._recent)
        return sum(entry[1] for entry in self._recent) / tokens if tokens else math.nan

    @property
    def tokens_per_second(self) -> float:
        """Speed over the last 50 updates."""
        seconds = self._recent[-1][0] - self._recent[0][0]
        return sum(entry[2] for entry in list(self._recent)[1:]) / seconds if seconds > 0 else 0.0

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
        """Seconds left at the present speed; None if unknown."""
        elapsed = self._clock() - self._started
        left = []
        if self._goal.seconds:
            left.append(max(0.0, self._goal.seconds - elapsed))
        if self._goal.steps and self._last.step > self._first_step:
            pace = elapsed / (self._last.step - self._first_step)
            left.append(max(0.0, pace * (self._goal.steps - self._last.step)))
        return min(left) if left else None

    def line(self, room: int | None = None) -> str:
        """Steps, perplexity, loss, speed, epoch and learning rate: as many as fit into ``room`` columns."""
        update = self._last
        steps = f"{update.step:,}/{self._goal.steps:,}" if self._goal.steps else f"{update.step:,}"
        parts = (
            f"step {steps}",
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
