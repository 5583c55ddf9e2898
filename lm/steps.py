"""Steps of long work: progress for a progress bar, and checks that may end it."""

from collections.abc import Callable

OnProgress = Callable[[int, int], None]  # called with (work done, total work)
OnAdvance = Callable[[int], None]  # called with the work done since the last call
Check = Callable[[], None]  # called at every step; raises to end the work


def no_progress(done: int, total: int) -> None:
    """No-op callback."""


def no_advance(work: int) -> None:
    """No-op callback."""


def unchecked() -> None:
    """A check that never ends the work."""


class Steps:
    """A counter of finished work; ``total`` and the parts share an arbitrary unit."""

    def __init__(self, total: int, progress: OnProgress = no_progress) -> None:
        self._total, self._done = max(1, total), 0
        self._progress = progress

    def advance(self, work: int) -> None:
        """Add ``work`` to the finished work."""
        self._done = min(self._done + work, self._total)
        self._progress(self._done, self._total)

    def reach(self, done: int) -> None:
        """Set the finished work to ``done``."""
        self.advance(done - self._done)
