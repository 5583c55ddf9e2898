"""How a signal ends a long computation, at the next moment when everything can be saved; how far one is."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from lm.errors import Interrupted

T = TypeVar("T")
Poll = Callable[[], None]  # of long loops; it raises to end them
Progress = Callable[[int, int], None]  # told how much of how much is done

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
ECHO_SECONDS = 0.1  # `timeout` and others deliver one request twice: to the process and to its group
RESUME = "the same command resumes it"
RESTART = "nothing was written; the same command starts over"


class StopFlag:
    """Set by the first SIGINT, SIGTERM, SIGHUP or SIGUSR1; the second one ends the process at once, with 75.

    Long loops poll it; ``remedy`` ends the message of what it raises. Signals reach the main thread only:
    installing it in another one does nothing. Under nohup, SIGHUP stays ignored.
    """

    def __init__(self, remedy: str = RESUME) -> None:
        self._remedy = remedy
        self._received: signal.Signals | None = None
        self._at = 0.0
        self._told = False  # whether a check has raised
        self._previous: dict[signal.Signals, Any] = {}

    def __bool__(self) -> bool:
        return self._received is not None

    def check(self) -> None:
        """Raises Interrupted once a signal has come."""
        if self._received is not None:
            self._told = True
            raise Interrupted(f"interrupted by {self._received.name}; {self._remedy}")

    def install(self) -> None:
        """Take over the signals; they are given back by :meth:`uninstall`."""
        if threading.current_thread() is not threading.main_thread() or self._previous:
            return
        for number in SIGNALS:
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._previous[number] = signal.signal(number, self._receive)

    def uninstall(self) -> None:
        """Put the earlier handlers back; without effect where nothing was installed."""
        while self._previous:
            number, handler = self._previous.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def pass_on(self) -> None:
        """Raises KeyboardInterrupt where a signal came that no check has told of."""
        if self._received is not None and not self._told:
            raise KeyboardInterrupt

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._received is None:
            self._received, self._at = signal.Signals(number), now
        elif now - self._at >= ECHO_SECONDS:
            os._exit(Interrupted.exit_code)


def no_poll() -> None:
    """The poll of a caller that nothing interrupts."""


def no_progress(done: int, total: int) -> None:
    """The progress of a caller that does not look."""


def polled(items: Iterable[T], poll: Poll) -> Iterator[T]:
    """The items, with a poll before each."""
    for item in items:
        poll()
        yield item


@contextmanager
def interruptible(remedy: str = RESTART) -> Iterator[Poll]:
    """A poll for long loops: it raises Interrupted once a signal has come; nothing is cut off in between.

    ``remedy`` ends its message: how to go on. A signal after the last poll is not lost: it is a
    KeyboardInterrupt at the end.
    """
    stop = StopFlag(remedy)
    stop.install()
    try:
        yield stop.check
    finally:
        stop.uninstall()
    stop.pass_on()


class Steps:
    """Polls and tells progress as work is done; ``total`` and the parts are in the same, any, unit."""

    def __init__(self, total: int, poll: Poll = no_poll, progress: Progress = no_progress) -> None:
        self._total, self._done = max(1, total), 0
        self._poll, self._progress = poll, progress

    def advance(self, work: int) -> None:
        """``work`` more is done; raises what the poll raises."""
        self._poll()
        self._done = min(self._done + work, self._total)
        self._progress(self._done, self._total)

    def reach(self, done: int) -> None:
        """So much is done in all, whatever was told of it."""
        self.advance(done - self._done)
