"""Ctrl-C in a chat on a terminal. It stops only the current reply."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lm.errors import Interrupted


class Press(KeyboardInterrupt):
    """Ctrl-C in a chat. Libraries do not catch a KeyboardInterrupt; that of another signal ends the chat."""


class CtrlC:
    """Presses of Ctrl-C since the last :meth:`forget`, while :meth:`held`."""

    def __init__(self) -> None:
        self._pressed = self._replying = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """A section in which SIGINT counts as a press and stops only a reply."""
        self.forget()
        before = signal.signal(signal.SIGINT, self._press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            self.forget()

    @contextmanager
    def ends_reply(self) -> Iterator[None]:
        """A section in which a press, also one from before, raises Interrupted at once."""
        self._replying = True
        try:
            if self._pressed:
                raise Press
            yield
        except Press:
            raise Interrupted("stopped") from None
        finally:
            self._replying = False

    def forget(self) -> None:
        """Forget the presses."""
        self._pressed = False

    def _press(self, number: int, frame: FrameType | None) -> None:
        self._pressed = True
        if self._replying:
            self._replying = False
            raise Press


CTRL_C = CtrlC()  # one per process, like the signal
