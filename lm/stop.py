"""Cooperative handling of signals: a flag for training, and sections that defer signals."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Self

from lm.errors import HighrankError, Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
ECHO_SECONDS = 0.1  # `timeout` and others deliver one request twice: to the process and to its group
RESUME = "the same command resumes it"
NOTICE = "stopping after this update and saving; another signal ends at once without saving"


class StopFlag:
    """A flag set by the first SIGINT, SIGTERM, SIGHUP or SIGUSR1; a second signal ends the process with 75.

    A context manager that installs its signal handlers. Training polls the flag so that it can save.
    ``remedy`` ends the message of Interrupted. The first signal writes ``notice`` to stderr, if any. Outside
    of the main thread, installing has no effect. Under nohup, SIGHUP stays ignored.
    """

    def __init__(self, remedy: str = RESUME, notice: str = "") -> None:
        self._remedy = remedy
        self._notice = notice.encode()
        self._received: signal.Signals | None = None
        self._at = 0.0
        self._raises = False
        self._previous: dict[signal.Signals, Any] = {}

    def __bool__(self) -> bool:
        return self._received is not None

    def check(self, remedy: str = "") -> None:
        """Raise Interrupted once a signal has come, with ``remedy`` or that of the flag."""
        if self._received is not None:
            raise Interrupted(f"interrupted by {self._received.name}; {remedy or self._remedy}")

    @contextmanager
    def raising(self) -> Iterator[None]:
        """A section in which the first signal, also one received before, raises Interrupted at once."""
        try:
            try:
                self._raises = True
                self.check()
                yield
            finally:
                self._raises = False
        except KeyboardInterrupt:  # from _receive, because libraries do not catch KeyboardInterrupt
            self.check()
            raise

    def install(self) -> None:
        """Install the signal handlers; :meth:`uninstall` restores the earlier ones."""
        if threading.current_thread() is not threading.main_thread() or self._previous:
            return
        for number in SIGNALS:
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._previous[number] = signal.signal(number, self._receive)

    def uninstall(self) -> None:
        """Restore the earlier handlers. No effect if nothing was installed."""
        while self._previous:
            number, handler = self._previous.popitem()
            if not _shield.closed:
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
            self._notify()
            if self._raises and not postpone():
                raise KeyboardInterrupt
        elif now - self._at >= ECHO_SECONDS:
            os._exit(Interrupted.exit_code)

    def _notify(self) -> None:
        """Write the notice without a buffer or a lock, because a signal may interrupt their owner."""
        if self._notice and sys.__stderr__:  # of a closed one, a file of the run may have the number
            with suppress(OSError):  # a closed or full stderr must not end a training
                os.write(2, (b"\n" if os.isatty(2) else b"") + self._notice + b"\n")  # after ^C or a bar


class _Shield:
    """State of the sections below; only for the main thread, in which Python runs signal handlers."""

    def __init__(self) -> None:
        self.depth = 0
        self.wake: Callable[[], None] | None = None
        self.pending = False
        self.closed = False

    def deliver(self) -> None:
        if self.pending and not self.depth:
            self.pending = False
            raise KeyboardInterrupt


_shield = _Shield()
_cleaning = list[Callable[[], None]]()


def postpone() -> bool:
    """Return true if a signal must wait, so that its KeyboardInterrupt comes at the end of a section."""
    _shield.pending = _shield.depth > 0
    if _shield.pending and _shield.wake:
        _shield.wake()
    return _shield.pending


@contextmanager
def cleaned_up(clean: Callable[[], None]) -> Iterator[None]:
    """A section in which a signal that ends the process at once calls ``clean`` before."""
    _cleaning.append(clean)
    try:
        yield
    finally:
        _cleaning.remove(clean)


def clean_up() -> None:
    """Call what the sections of :func:`cleaned_up` name, from the innermost on."""
    for clean in reversed(_cleaning):
        with suppress(OSError, HighrankError):
            clean()


def ignore_signals() -> None:
    """Ignore all signals from now on, in a process that ends."""
    if threading.current_thread() is threading.main_thread():
        _shield.closed = True
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def deferred_signals(wake: Callable[[], None] | None = None) -> Iterator[None]:
    """A section that defers the KeyboardInterrupt of the first signal to its end.

    Use it for the few steps that publish files, and for libraries that an exception at a random place breaks,
    with ``wake``, which the handler of the signal calls to end them. Of nested sections it is that of the
    innermost that has one. A handler that raises calls :func:`postpone` before. A second signal still ends
    the process at once.
    """
    with _depth(1, wake):
        yield


@contextmanager
def delivered_signals() -> Iterator[None]:
    """A section of interruptible long work inside of :func:`deferred_signals`."""
    with _depth(-1):
        yield


@contextmanager
def _depth(change: int, wake: Callable[[], None] | None = None) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = _shield.depth, _shield.wake
    try:
        _shield.wake = wake or _shield.wake
        _shield.depth = max(0, _shield.depth + change)
        _shield.deliver()
        if wake and _shield.pending:
            wake()
        yield
    finally:
        _shield.depth, _shield.wake = before
        _shield.deliver()
