"""The lines that training writes to metrics.jsonl and timing.jsonl."""

from collections.abc import Mapping
from contextlib import suppress

from lm.engine.state import Progress
from lm.errors import StorageError
from lm.measures import perplexity
from lm.runs.metrics_log import LOG_LOST
from lm.runs.run import Run


class NoJournal:
    """The journal of processes that leave the logs to rank 0."""

    def record(self, progress: Progress, split: str, values: Mapping[str, str | float]) -> None:
        """Nothing is written."""

    def updates(self, progress: Progress, lr: float, seconds: float) -> None:
        """Nothing is written."""

    def ended(self, state: str, progress: Progress, seconds: float) -> None:
        """Nothing is written."""


class Journal:
    """Writes the logs of a run. A line that the disk refuses is kept, and written before the next commit."""

    def __init__(self, run: Run) -> None:
        self._metrics, self._timing = run.metrics, run.timing
        self._unwritten: list[Mapping[str, object]] = []
        self._timed = 0.0  # training seconds at the last line of timing.jsonl

    def record(self, progress: Progress, split: str, values: Mapping[str, str | float]) -> None:
        """A line of metrics.jsonl; numbers that are not finite become null."""
        place = {"step": progress.step, "epoch": progress.pass_number, "split": split}
        self._unwritten.append({**place, **values})
        with suppress(StorageError):  # flush tells, when it matters
            self._write()

    def updates(self, progress: Progress, lr: float, seconds: float) -> None:
        """The updates since the last such line, averaged over tokens; ``seconds`` of training so far."""
        window = progress.window
        nll, norm = window.nll / window.tokens, window.grad_norm / window.updates
        means = {"nll": nll, "perplexity": perplexity(nll), "lr": lr, "grad_norm": norm}
        self.record(progress, "train", means | {"tokens": window.tokens})
        speed = window.tokens / max(1e-9, seconds - self._timed)
        self._timed = seconds
        with suppress(StorageError):  # not needed to go on
            self._timing.append({"step": progress.step, "seconds": seconds, "tokens_per_second": speed})

    def ended(self, state: str, progress: Progress, seconds: float) -> None:
        """A last line of timing.jsonl: how a training ended. Resuming takes it back."""
        with suppress(StorageError):  # only shown
            self._timing.append({"step": progress.step, "seconds": seconds, "ended": state})

    def flush(self) -> tuple[int, int]:
        """Brings every line to the disk and returns the sizes of both files; raises StorageError."""
        self._write()
        self._metrics.sync()
        return self._metrics.offset, self._timing.offset

    def require(self, size: int, sha256: str) -> bool:
        """Whether the log begins as a commit knew it; False where it is gone: there, but empty.

        StorageError where it is another, or shorter. ``sha256`` is empty for commits that had none.
        """
        if size and not self._metrics.offset:
            return False
        if self._metrics.offset < size or (sha256 and self._metrics.sha256(size) != sha256):
            raise StorageError(f"{self._metrics.path}: not what was logged up to the checkpoint; {LOG_LOST}")
        return True

    def cut(self, metrics: int) -> int:
        """Takes back what was logged after a commit that knew ``metrics`` bytes; returns how many it was."""
        self._unwritten.clear()
        lost = self._metrics.offset - metrics
        self._metrics.truncate(metrics)
        return lost

    def resume(self, timing: int, seconds: float) -> None:
        """Goes on after ``seconds`` of training; ``timing`` bytes of timing.jsonl are older than that."""
        self._timed = seconds
        self._timing.truncate(min(timing, self._timing.offset))

    def _write(self) -> None:
        while self._unwritten:
            self._metrics.append(self._unwritten[0])
            del self._unwritten[0]
