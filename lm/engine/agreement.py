"""Signals, clock and failures of a training, from which all its processes decide alike.

A single process sees its own signals and clock at once. The processes of a group see those of the last
exchange, all the same, so that none stops, saves or recovers alone.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from lm.errors import Interrupted
from lm.parallel.group import Group
from lm.stop import StopFlag


class Clock:
    """Seconds of training, earlier sittings included.

    ``old`` is true ``minutes`` after the last commit, whether it failed or not; 0 = never.
    """

    def __init__(self, minutes: float) -> None:
        self._minutes = minutes
        self._before = 0.0
        self._started = self._tried_at = time.monotonic()

    @property
    def seconds(self) -> float:
        """Training time so far."""
        return self._before + time.monotonic() - self._started

    @property
    def old(self) -> bool:
        """True if the last commit is older than the limit."""
        return self._minutes > 0 and time.monotonic() - self._tried_at >= 60 * self._minutes

    def resume(self, seconds: float) -> None:
        """Add the seconds of earlier sittings."""
        self._before = seconds

    def tried(self) -> None:
        """Note a commit, or one that failed."""
        self._tried_at = time.monotonic()


class Standing(NamedTuple):
    """A process's part of an exchange, or the outcome of one, equal on all processes."""

    stop: bool  # the process has received a signal; as an outcome, any of them has
    seconds: float  # training time; as an outcome, rank 0's
    old: bool  # the last commit is old; as an outcome, rank 0's


class Agreement:
    """Decisions of the processes of a ``group`` on one training."""

    def __init__(self, group: Group, stop: StopFlag, clock: Clock) -> None:
        self._group, self._stop, self._clock = group, stop, clock
        self._agreed = Standing(stop=False, seconds=0.0, old=False)

    def status(self) -> Standing:
        """This process's part of the next exchange."""
        return Standing(bool(self._stop), self._clock.seconds, self._clock.old)

    def settle(self, every: Sequence[Sequence[float]]) -> None:
        """Take over the outcome of an exchange of the status of all processes, by rank."""
        _, seconds, old = every[0]
        self._agreed = Standing(any(stop for stop, *_ in every), seconds, bool(old))

    def meet(self) -> None:
        """Exchange the status of all processes."""
        self.settle(self._group.gather([*self.status()]))

    @property
    def outcome(self) -> Standing:
        """Standing that all processes have agreed on."""
        return self._agreed if self._group.size > 1 else self.status()

    def check(self) -> None:
        """Raise Interrupted if the outcome is to stop."""
        if self.outcome.stop:
            raise Interrupted("interrupted")

    def unanimous(self, holds: bool) -> bool:
        """True on all processes if ``holds`` is true on each."""
        return all(self._group.gather(holds))

    def by_first(self, decide: Callable[[], str]) -> str:
        """Rank 0's decision."""
        return str(self._group.share(decide))

    def scored(self, slices: Iterator[tuple[float, int]]) -> tuple[float, int]:
        """Sums of nats and of tokens over the slices of a validation, as rank 0 has them.

        Interrupted on all processes as soon as one has received a signal.
        """
        nll, tokens = self._group.first(self._group.every(lambda: self._sums(slices)))
        self.meet()
        return float(nll), int(tokens)

    def _sums(self, slices: Iterator[tuple[float, int]]) -> tuple[float, int]:
        total, tokens = 0.0, 0
        try:
            with self._stop.raising():
                for nll, count in slices:
                    total, tokens = total + nll, tokens + count
                    if self._group.alerted():
                        raise Interrupted("interrupted")
        finally:
            if self._stop:
                self._group.alert()
        return total, tokens
