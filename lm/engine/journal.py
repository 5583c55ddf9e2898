"""Training logs: metrics.jsonl and timing.jsonl."""

from collections.abc import Mapping
from contextlib import suppress

from lm.engine.state import Progress
from lm.errors import StorageError
from lm.measures import perplexity
from lm.runs.commit import FileRecord
from lm.runs.metrics_log import LOG_LOST
from lm.runs.run import Run


class NoJournal:
    """Journal of ranks other than 0: writes nothing."""

    def record(self, progress: Progress, split: str, values: Mapping[str, str | float]) -> None:
        """Nothing is written."""

    def updates(self, progress: Progress, lr: float, seconds: float) -> None:
        """Nothing is written."""

    def ended(self, state: str, progress: Progress, seconds: float) -> None:
        """Nothing is written."""


class Journal:
    """Writes the logs of a run. A line that could not be written is kept and retried by the next write."""

    def __init__(self, run: Run) -> None:
        self._metrics, self._timing = run.metrics, run.timing
        self._unwritten: list[Mapping[str, object]] = []
        self._timed = 0.0  # training seconds at the last line of timing.jsonl, or at the last resumption
        self._untimed = 0  # tokens of the window before that

    def record(self, progress: Progress, split: str, values: Mapping[str, str | float]) -> None:
        """Append a line to metrics.jsonl; non-finite numbers become null."""
        place = {"step": progress.step, "epoch": progress.pass_number, "split": split}
        self._unwritten.append({**place, **values})
        with suppress(StorageError):  # flush retries and raises
            self._write()

    def updates(self, progress: Progress, lr: float, seconds: float) -> None:
        """Log means over the tokens since the last such line; ``seconds`` is the training time so far."""
        window = progress.window
        nll, norm = window.nll / window.tokens, window.grad_norm / window.updates
        means = {"nll": nll, "perplexity": perplexity(nll), "lr": lr, "grad_norm": norm}
        self.record(progress, "train", means | {"tokens": window.tokens})
        speed = (window.tokens - self._untimed) / max(1e-9, seconds - self._timed)
        self._timed, self._untimed = seconds, 0
        with suppress(StorageError):  # the training does not depend on it
            self._timing.append({"step": progress.step, "seconds": seconds, "tokens_per_second": speed})

    def ended(self, state: str, progress: Progress, seconds: float) -> None:
        """Append the reason of the end to timing.jsonl. Resuming removes that line."""
        with suppress(StorageError):  # only displayed
            self._timing.append({"step": progress.step, "seconds": seconds, "ended": state})

    def flush(self) -> tuple[int, int]:
        """Sync metrics.jsonl to disk and return the sizes of both files in bytes; raises StorageError."""
        self._write()
        self._metrics.sync()
        return self._metrics.offset, self._timing.offset

    def require(self, log: FileRecord) -> bool:
        """True if the log begins with the bytes that a commit recorded, False if the log is empty.

        Raises StorageError if the log is shorter or its bytes differ.
        """
        if log.size and not self._metrics.offset:
            return False
        if self._metrics.offset < log.size or self._metrics.sha256(log.size) != log.sha256:
            raise StorageError(f"{self._metrics.path}: not what was logged up to the checkpoint; {LOG_LOST}")
        return True

    def cut(self, metrics: int) -> int:
        """Truncate metrics.jsonl to the size in a commit, ``metrics`` bytes; returns the bytes removed."""
        self._unwritten.clear()
        lost = self._metrics.offset - metrics
        self._metrics.truncate(metrics)
        return lost

    def resume(self, progress: Progress, timing: int, seconds: float) -> None:
        """Continue after ``seconds`` of training, with the first ``timing`` bytes of timing.jsonl."""
        self._timed, self._untimed = seconds, progress.window.tokens
        self._timing.truncate(min(timing, self._timing.offset))

    def _write(self) -> None:
        while self._unwritten:
            self._metrics.append(self._unwritten[0])
            del self._unwritten[0]
