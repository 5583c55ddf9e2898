"""Training time of a run, and the age of its last commit."""

import time


class Clock:
    """Seconds of training, earlier sittings included.

    ``old`` is true when the last commit is older than ``minutes``; 0 = never.
    """

    def __init__(self, minutes: float) -> None:
        self._minutes = minutes
        self._before = 0.0
        self._started = self._saved_at = time.monotonic()

    @property
    def seconds(self) -> float:
        """Training time so far."""
        return self._before + time.monotonic() - self._started

    @property
    def old(self) -> bool:
        """True if the last commit is older than the limit."""
        return self._minutes > 0 and time.monotonic() - self._saved_at >= 60 * self._minutes

    def resume(self, seconds: float) -> None:
        """Add the seconds of earlier sittings."""
        self._before = seconds

    def saved(self) -> None:
        """Note a commit."""
        self._saved_at = time.monotonic()
