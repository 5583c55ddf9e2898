"""Checkpointing during training: when to commit, which commits to keep, resuming, recovery."""

from typing import Any

import numpy as np
import torch

from lm.disk.jsonfile import JSON
from lm.engine.agreement import Clock
from lm.engine.config import TrainConfig
from lm.engine.events import Note, Reporter
from lm.engine.journal import Journal
from lm.engine.state import Progress, TrainingState
from lm.errors import StorageError
from lm.heads.kernel_choice import kernels_of
from lm.heads.rows import cache_bytes
from lm.runs.checkpoint import Commit
from lm.runs.commit import FileRecord
from lm.runs.inputs import RECORD, record_of
from lm.runs.run import Run

FAILURES = 3  # commits that may fail in a row before training gives up


class Saver:
    """Commits the state of a training to its run; resumes and recovers from commits.

    ``dirty`` is True if the state has changed since the last commit.
    """

    def __init__(
        self,
        training: TrainingState,
        train: TrainConfig,
        run: Run,
        journal: Journal,
        report: Reporter,
        clock: Clock,
    ) -> None:
        self._training = training
        self._train = train
        self._store = run.checkpoints
        self._run = run
        self._journal = journal
        self._report = report
        self._clock = clock
        self._failures = 0
        self._committed_best: list[tuple[float, int]] = []  # of the newest commit
        self.dirty = True

    def preflight(self, size: int) -> None:
        """Raise StorageError unless the disk has room for the commits, of ``size`` bytes, that are kept."""
        kept = self._train.keep_best + self._train.keep_last + 1  # and one to recover from
        commits = kept + 1 - len(self._store.committed())  # a new one is written before an old one goes
        self._run.preflight(size * max(1, commits))

    def resume(self) -> None:
        """Return to the newest intact commit, or to the start if there is no commit.

        Raises StorageError if commits exist but none is intact.
        """
        commit = self._store.latest()
        for problem in self._store.problems:
            self._report(Note(f"warning: skipped a damaged checkpoint: {problem}"))
        if commit is None:
            if self._journal.cut(0):
                self._report(
                    Note("the log has records but there is no checkpoint: starting over with an empty log")
                )
            self._journal.resume(self._training.progress, 0, 0.0)
            return
        whole = self._journal.require(_log_of(commit))
        missing = self._load(commit, whole)
        self._prune()
        facts: Any = commit.facts
        self._clock.resume(facts["seconds"])
        self._journal.resume(self._training.progress, facts["timing_bytes"], facts["seconds"])
        self._report(Note(f"resuming after step {commit.step}"))
        for step in missing:
            self._report(Note(f"warning: step {step} of the best is missing, and no longer counts"))
        if (missing and self._training.progress.best) or not whole:
            self._commit()  # before any line is written: a kill must not leave a log that no commit records
        if not whole:
            self._lost_log()
            self._commit()
        for name, now in self._circumstances().items():
            was = facts.get(name, now)  # a GPU has no instructions and cache
            if was != now:
                self._report(Note(f"{name} was {was}, is {now}: results may differ"))

    def recover(self) -> bool:
        """Return to the last commit due by step that followed a finite update; False without one."""
        anchor = self._training.progress.anchor
        if anchor < 0:  # no commit due by step has succeeded yet
            return False
        try:
            commit = self._store.open(f"step-{anchor}")
        except StorageError:
            return False
        try:
            whole = self._journal.require(_log_of(commit))
        except StorageError:  # the log was restarted after that commit
            whole = False
        self._load(commit, whole)
        facts: Any = commit.facts
        self._journal.resume(self._training.progress, facts["timing_bytes"], self._clock.seconds)
        if not whole:
            self._lost_log()
        self.dirty = True
        return True

    def require_best(self) -> None:
        """Raise StorageError if the best checkpoint of the newest commit is missing."""
        self._store.steps("best")

    def _lost_log(self) -> None:
        self._journal.record(self._training.progress, "event", {"event": "log lost"})
        self._report(Note("metrics.jsonl was missing or empty and starts again; training is not affected"))

    def save(self, final: bool) -> None:
        """Commit a changed state. A failure only warns, but the third in a row or a ``final`` one raises.

        Raises RunMovedError at once.
        """
        if not self.dirty:
            return
        self._run.require_place()
        progress = self._training.progress
        anchor = progress.anchor, progress.anchor_best
        if commit_step(progress, self._train) and not progress.guard.in_a_row:
            progress.anchor, progress.anchor_best = progress.step, [step for _, step in progress.best]
        try:
            self._commit()
        except StorageError as error:
            self._failures += 1
            self._clock.tried()
            if progress.step not in self._store.committed():
                progress.anchor, progress.anchor_best = anchor
                progress.best = list(self._committed_best)  # with one that this step may have displaced
            if final or self._failures >= FAILURES:
                raise
            self._report(Note(f"warning: step {progress.step} is not saved, training goes on: {error}"))
            return
        self._failures = 0
        self._clock.tried()
        self.dirty = False

    def _commit(self) -> None:
        progress = self._training.progress
        metrics, timing = self._journal.flush()
        # The length of the log is part of the state, so that a step whose log was lost is committed anew.
        state = self._training.values() | {"metrics_bytes": metrics}
        facts: dict[str, JSON] = {
            **self._circumstances(),
            "seconds": self._clock.seconds,
            "timing_bytes": timing,
        }
        facts[RECORD] = self._run.record()
        self._store.commit(progress.step, self._training.groups(), state, facts)
        self._committed_best = list(progress.best)
        self._prune()

    def _prune(self) -> None:
        """Delete commits that are neither best, nor the one to return to, nor among the last."""
        progress = self._training.progress
        kept = {progress.anchor, *progress.anchor_best, *(step for _, step in progress.best)}
        self._store.prune(kept.union(self._store.committed()[-self._train.keep_last :]))

    def _load(self, commit: Commit, keep_log: bool) -> list[int]:
        """Return to a commit and delete newer ones, which are damaged or diverged.

        The log is truncated to the size that the commit recorded, or emptied without ``keep_log``. Returns
        best steps that are missing, as after a damaged commit that displaced them.
        """
        self._training.load(commit)
        progress = self._training.progress
        kept = [step for step in self._store.committed() if step <= commit.step]
        missing = [step for _, step in progress.best if step not in kept]
        progress.best = [entry for entry in progress.best if entry[1] in kept]
        self._committed_best = list(progress.best)
        self._store.prune(kept)
        self._journal.cut(_log_of(commit).size if keep_log else 0)
        self.dirty = False
        return missing

    def _circumstances(self) -> dict[str, str | int]:
        """Versions, threads, kernels and device, which bit-identical results also depend on.

        On a CPU, its instructions choose the kernels of torch, and its cache the blocks of the losses.
        """
        device = next(self._training.task.model.parameters()).device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        versions = {"torch": torch.__version__, "numpy": np.__version__}  # NumPy permutes the batches
        kernels = kernels_of(device.type)
        found: dict[str, str | int] = {
            **versions,
            "threads": torch.get_num_threads(),
            "kernels": kernels,
            "device": name,
        }
        if device.type == "cpu":
            found |= {"instructions": torch.backends.cpu.get_cpu_capability(), "cache": cache_bytes()}
        return found


def commit_step(progress: Progress, train: TrainConfig) -> bool:
    """True if a step is committed regardless of the clock."""
    by_steps = train.checkpoint_every > 0 and progress.step % train.checkpoint_every == 0
    return progress.step == 0 or progress.validated == progress.step or by_steps


def _log_of(commit: Commit) -> FileRecord:
    """Size and SHA-256 of the log at a commit. Raises StorageError if the commit does not record them."""
    record = record_of(commit)
    if record is None:
        raise StorageError(f"{commit.path}: has no record of its run; train in a new --run folder")
    return record.log
