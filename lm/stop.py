"""Signals: a flag for training, and sections that no signal cuts off."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from lm.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
ECHO_SECONDS = 0.1  # `timeout` and others deliver one request twice: to the process and to its group
RESUME = "the same command resumes it"


class StopFlag:
    """A flag set by the first SIGINT, SIGTERM, SIGHUP or SIGUSR1; the second one ends the process with 75.

    A context manager, which holds the signals. Training polls the flag, for it has to save. ``remedy`` ends
    the message of Interrupted. Signals reach the main thread only: elsewhere installing has no effect. Under
    nohup, SIGHUP stays ignored.
    """

    def __init__(self, remedy: str = RESUME) -> None:
        self._remedy = remedy
        self._received: signal.Signals | None = None
        self._at = 0.0
        self._raises = False
        self._previous: dict[signal.Signals, Any] = {}

    def __bool__(self) -> bool:
        return self._received is not None

    def check(self) -> None:
        """Raise Interrupted once a signal has come."""
        if self._received is not None:
            raise Interrupted(f"interrupted by {self._received.name}; {self._remedy}")

    @contextmanager
    def raising(self) -> Iterator[None]:
        """A section that the first signal ends at once, by Interrupted, as do signals from before it."""
        try:
            try:
                self._raises = True
                self.check()
                yield
            finally:
                self._raises = False
        except KeyboardInterrupt:  # of _receive: no library takes one for a failure of its own
            self.check()
            raise

    def install(self) -> None:
        """Take over the signals; :meth:`uninstall` gives them back."""
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

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._received is None:
            self._received, self._at = signal.Signals(number), now
            if self._raises:
                raise KeyboardInterrupt
        elif now - self._at >= ECHO_SECONDS:
            os._exit(Interrupted.exit_code)


class _Shield:
    """State of the sections below, in the main thread: Python runs its handlers nowhere else."""

    def __init__(self) -> None:
        self.depth = 0
        self.pending = False

    def deliver(self) -> None:
        if self.pending and not self.depth:
            self.pending = False
            raise KeyboardInterrupt


_shield = _Shield()


def postpone() -> bool:
    """Whether a signal has to wait for the end of a section, where its KeyboardInterrupt comes."""
    _shield.pending = _shield.depth > 0
    return _shield.pending


@contextmanager
def deferred_signals() -> Iterator[None]:
    """A section that the first signal cannot cut off. Its KeyboardInterrupt comes at the end of the section.

    It is for the few steps of the commands that publish files. :class:`lm.ending.EarlyStop` asks
    :func:`postpone`. The second signal still ends the process at once.
    """
    with _depth(1):
        yield


@contextmanager
def delivered_signals() -> Iterator[None]:
    """Long work inside of a section of :func:`deferred_signals`, which a signal may cut off."""
    with _depth(-1):
        yield


@contextmanager
def _depth(change: int) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = _shield.depth
    try:
        _shield.depth = max(0, before + change)
        _shield.deliver()
        yield
    finally:
        _shield.depth = before
        _shield.deliver()
