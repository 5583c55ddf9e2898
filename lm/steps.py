"""Progress of long work, for a bar."""

from collections.abc import Callable

OnProgress = Callable[[int, int], None]  # called with the work that is done, and all of it


def no_progress(done: int, total: int) -> None:
    """Progress that nobody looks at."""


class Steps:
    """A sum of the work that is done; ``total`` and the parts are in the same, any, unit."""

    def __init__(self, total: int, progress: OnProgress = no_progress) -> None:
        self._total, self._done = max(1, total), 0
        self._progress = progress

    def advance(self, work: int) -> None:
        """Add ``work`` to what is done."""
        self._done = min(self._done + work, self._total)
        self._progress(self._done, self._total)

    def reach(self, done: int) -> None:
        """Make the sum ``done``."""
        self.advance(done - self._done)
