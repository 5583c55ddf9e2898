"""How far a computation of several stages is."""

from collections.abc import Callable

from lm.stop import no_poll as no_poll  # its users import it from here

Poll = Callable[[], None]
Progress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """The progress of a caller that does not look."""


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
