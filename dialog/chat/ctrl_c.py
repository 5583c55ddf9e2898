"""Ctrl-C in a chat on a terminal. It stops only the current reply."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lm.errors import Interrupted


class CtrlC:
    """Presses of Ctrl-C since the last :meth:`forget`, while :meth:`held`."""

    def __init__(self) -> None:
        self.pressed = self._replying = False

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
        """A section in which a press, also one from before, raises Interrupted at once.

        The KeyboardInterrupt of any other signal ends the chat.
        """
        self._replying = True
        try:
            if self.pressed:
                raise KeyboardInterrupt
            yield
        except KeyboardInterrupt:  # from _press, because libraries do not catch KeyboardInterrupt
            if not self.pressed:
                raise
            raise Interrupted("stopped") from None
        finally:
            self._replying = False

    def forget(self) -> None:
        """Forget the presses."""
        self.pressed = False

    def _press(self, number: int, frame: FrameType | None) -> None:
        self.pressed = True
        if self._replying:
            self._replying = False
            raise KeyboardInterrupt


CTRL_C = CtrlC()  # one per process, like the signal
