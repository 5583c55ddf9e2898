"""Polls that end what they are given to."""

from lm.errors import Interrupted
from lm.stop import Poll


def stop_after(calls: int) -> Poll:
    """A poll that interrupts once it was called so many times."""
    left = iter(range(calls))

    def poll() -> None:
        if next(left, None) is None:
            raise Interrupted("interrupted")

    return poll
