"""The training engine: one loop for every task.

At each boundary between two updates the loop validates and commits what is due, so that a process that is
killed anywhere and started again goes on as if nothing had happened: all that its future depends on is in the
commit (:mod:`lm.engine.state`), and what the log holds beyond the commit is cut off.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from lm.engine.config import OptimConfig, TrainConfig
from lm.engine.events import Ended, Goal, Note, Reporter, Started, Update, Validated
from lm.engine.guard import Guard
from lm.engine.journal import Journal, NoJournal
from lm.engine.optim import Averager, Schedule, build_optimizer, nonmonotonic, numbers_per_parameter
from lm.engine.rng import seed_everything
from lm.engine.saving import Saver
from lm.engine.sharded import Agreed, ShardedUpdater
from lm.engine.shared_saving import Follower, SharedSaver
from lm.engine.state import Bookmark, LogWindow, Progress, Stateful, TrainingState
from lm.engine.update import Batches, StepLoss, Sums, Updater
from lm.errors import ConfigError, DataError, DivergenceError, Interrupted, StorageError
from lm.measures import guessing_note, perplexity
from lm.parallel.group import ALONE, Group
from lm.runs.run import Run

__all__ = ["FitResult", "StepLoss", "Task", "Verdict", "fit", "require_end", "seed_everything"]

BatchT = TypeVar("BatchT")
Verdict = Callable[[int, float], str]
"""Asked after a validation, with the step and the last finite nll: why training ends here, or nothing."""


class Task(Stateful, Protocol[BatchT]):
    """What is trained. Batches come on the right device; random numbers come from the global generators."""

    def epoch(self, number: int, start: int) -> Iterator[BatchT]:
        """Batches ``start``, ``start + 1``, … of pass ``number``, from 0: a function of seed, pass and index.

        The first batch of a pass starts from fresh carried state; any other from the state carried to it.
        """

    def epoch_length(self) -> int:
        """Batches in a pass; need not be exact, only shown."""

    def part(self, batch: BatchT, index: int, count: int) -> BatchT | None:
        """Shard ``index`` of ``count`` contiguous shards of a batch; None where it is empty.

        The rows of carried state are cut by :func:`lm.parallel.shards.slice_of`.
        """

    def loss(self, batch: BatchT) -> StepLoss:
        """The summed loss of a batch, or of a part of one."""

    def validate(self) -> dict[str, float]:
        """Metrics of the model as it is; ``"nll"``, in nats per token, decides.

        The model is in evaluation mode and no gradients are kept. A signal ends it, wherever it comes.
        """


@dataclass(frozen=True, slots=True)
class FitResult:
    """How a training ended."""

    step: int
    epoch: int
    best_nll: float  # nats per token on validation; NaN where no validation was finite
    best_step: int  # -1 where no validation was finite
    reason: str
    minutes: float  # of training, earlier sittings included


def require_end(train: TrainConfig) -> None:
    """Raises ConfigError where training could never end."""
    if not any((train.max_steps, train.max_epochs, train.max_minutes, train.patience, train.stop_trigger)):
        limits = "train.max_steps, train.max_epochs, train.max_minutes, train.patience or train.stop_trigger"
        raise ConfigError(f"training would never end; set {limits}")


def fit(
    task: Task[BatchT],
    train: TrainConfig,
    optim: OptimConfig,
    run: Run | Follower,
    report: Reporter,
    verdict: Verdict | None = None,
    words: int = 0,
    group: Group = ALONE,
) -> FitResult:
    """Trains until a limit or until validation stops improving; resumes where ``run`` holds a commit.

    ``verdict`` may end it at any validation, as a limit does; a resumed run asks again where it stands.
    ``words`` is the size of the vocabulary, for a warning where all validations are near guessing.
    The processes of a ``group`` train together: rank 0 with the run, the others with a :class:`Follower`.

    The end is validated whether or not it was due. A finished run that goes on with a higher limit has had
    that validation, and a run of that length from the start has not; where the end was due for validation
    anyway, by ``train.validate_every`` or as the end of a pass, the two are bit-identical. Otherwise the one
    has an additional record in the log and an additional candidate for the best, early stopping counts one
    validation more, and the plateau schedule hears of it; with any other schedule the weights of equal steps
    are the same.

    Raises Interrupted after saving on a signal, DivergenceError where numbers stay non-finite, StorageError
    where three commits in a row fail, ConfigError where training could never end.
    """
    require_end(train)
    engine = _Engine(task, train, optim, run, report, group)
    engine.verdict, engine.words = verdict, words
    try:
        return engine.fit()
    finally:
        report(Ended())


class _Engine(Generic[BatchT]):
    def __init__(
        self,
        task: Task[BatchT],
        train: TrainConfig,
        optim: OptimConfig,
        run: Run | Follower,
        report: Reporter,
        group: Group,
    ) -> None:
        self.task, self.train, self.optim, self.report, self.group = task, train, optim, report, group
        self.stop = run.stop
        optimizer = build_optimizer(optim, task.model)
        averager = Averager(optim, task.model, skip_first=train.compat == "paper")
        self.state = TrainingState(task, optimizer, Schedule(optim), averager, Progress())
        self.journal: Journal | NoJournal
        self.saver: Saver | SharedSaver
        if isinstance(run, Run):
            self.journal = Journal(run)
            self.saver = Saver(self.state, train, run, self.journal, report)
        else:
            self.journal = NoJournal()
        if group.size > 1:
            leader = self.saver if isinstance(run, Run) else None
            self.saver = SharedSaver(group, self.state, train, leader)
        self.updater = Updater(task.model, task.loss, optimizer, optim, train)
        self.sharded = ShardedUpdater(self.updater, task, train, group) if train.shards > 1 else None
        self.batches: Batches[BatchT] | None = None
        self.verdict: Verdict | None = None
        self.words = 0

    @property
    def progress(self) -> Progress:
        return self.state.progress

    def fit(self) -> FitResult:
        self.saver.preflight(numbers_per_parameter(self.optim))
        self.saver.resume()
        self.task.model.train()
        self.report(Started(self.progress.step, self.goal()))
        try:
            reason = self.loop()
        except Interrupted:
            raise Interrupted(self.interrupted()) from None
        except DivergenceError:
            self.journal.ended("diverged", self.progress, self.saver.seconds)
            raise
        self.journal.ended("finished", self.progress, self.saver.seconds)
        best_nll, best_step = self.progress.best[0] if self.progress.best else (math.nan, -1)
        if self.words and (warning := guessing_note(best_nll, self.words)):
            self.report(Note(warning))
        minutes = self.saver.seconds / 60
        return FitResult(self.progress.step, self.progress.pass_number, best_nll, best_step, reason, minutes)

    def loop(self) -> str:
        """Trains to the end and returns the reason for it; raises Interrupted between updates."""
        while True:
            reason = self.finished()
            if self.diverged(reason):
                self.recover()
                continue
            if self.validation_due(reason):
                self.validate()
                reason = reason or self.finished()
            if reason or self.saver.due():
                self.saver.save(final=bool(reason))
            if reason:
                self.require_updates()
                return reason
            self.check_stop()
            self.step()

    def interruptible(self) -> AbstractContextManager[object]:
        """Let signals end a validation; processes of a group end together, after it."""
        return self.stop.raising() if self.group.size == 1 else nullcontext()

    def check_stop(self) -> None:
        """Raise Interrupted on a signal; in a group, only when all processes know of it."""
        if self.group.size == 1:
            self.stop.check()
        elif self.sharded and self.sharded.agreed.stop:
            raise Interrupted("")

    def require_updates(self) -> None:
        """DivergenceError where all updates were skipped: there is nothing that a training has come to."""
        guard, step = self.progress.guard, self.progress.step
        if 0 < step <= guard.in_a_row:
            raise DivergenceError(
                f"no update of {step} was finite: {guard.describe()}; lower optim.lr or check the config"
            )

    def finished(self) -> str:
        """Why training ends here, or nothing."""
        train, progress = self.train, self.progress
        if train.max_steps and progress.step >= train.max_steps:
            return f"train.max_steps = {train.max_steps} reached"
        if train.max_epochs and progress.epoch >= train.max_epochs:
            return f"train.max_epochs = {train.max_epochs} reached"
        if train.patience and progress.stale >= train.patience:
            times = "1 time" if progress.stale == 1 else f"{progress.stale} times"
            return f"no better validation for {times} (train.patience = {train.patience})"
        if train.stop_trigger and nonmonotonic(progress.history, train.stop_trigger):
            return f"validation is worse than its best before (train.stop_trigger = {train.stop_trigger})"
        if train.max_minutes and self.saver.seconds >= 60 * train.max_minutes:
            return f"train.max_minutes = {train.max_minutes:g} reached"
        if self.verdict and progress.history and progress.validated == progress.step:
            return self.verdict(progress.step, progress.history[-1])
        return ""

    def goal(self) -> Goal:
        """The limits of training, for the progress display."""
        train = self.train
        per_epoch = math.ceil(self.task.epoch_length() / train.accumulate)
        steps = [limit for limit in (train.max_steps, train.max_epochs * per_epoch) if limit]
        seconds = max(1.0, 60 * train.max_minutes - self.saver.seconds) if train.max_minutes else 0.0
        return Goal(min(steps, default=0), seconds)

    def step(self) -> None:
        """One update from the next ``train.accumulate`` batches of this pass, or fewer where it ends."""
        progress = self.progress
        if self.batches is None:
            self.batches = Batches(self.task.epoch(progress.epoch, progress.index))
        batches = self.batches.take(self.train.accumulate)
        if not batches:
            raise DataError(
                f"epoch {progress.epoch + 1} has no batch {progress.index}; is the training data empty?"
            )
        before = Bookmark(self.task)
        sums = self.gradients(batches, before)
        lr = self.state.schedule.lr(progress.step) * progress.lr_factor * self.lr_scale(sums)
        number, first = progress.epoch + 1, progress.index
        progress.step += 1
        progress.index += len(batches)
        if self.batches.ended:
            progress.epoch, progress.index, self.batches = number, 0, None
        self.saver.dirty = True
        if sums.finite:
            self.updater.apply(sums, lr)
            self.state.averager.update(progress.step)
            progress.passed(sums.nll, sums.tokens, sums.grad_norm)
        else:
            before.restore()
            self.skipped(number, first)
        self.updater.clear()
        nll = sums.nll / sums.tokens if sums.finite else math.nan
        self.report(Update(progress.step, number, nll, lr, sums.grad_norm, sums.tokens))
        if progress.step % self.train.log_every == 0 and progress.window.updates:
            self.journal.updates(progress, lr, self.saver.seconds)
            progress.window = LogWindow()

    def lr_scale(self, sums: Sums) -> float:
        """The factor of this update's window; with ``compat``, that of the one before while ASGD averages."""
        late = self.progress.late_scale
        averaged = self.optim.average == "uniform" and self.state.averager.takes(self.progress.step + 1)
        if self.train.compat == "paper" and averaged:
            self.progress.late_scale = sums.lr_scale
            return sums.lr_scale if late is None else late
        return sums.lr_scale

    def gradients(self, batches: list[BatchT], before: Bookmark) -> Sums:
        """The gradients in the model and their sums; Interrupted leaves everything as it was before."""

        def checked() -> Iterator[BatchT]:
            for batch in batches:
                self.stop.check()
                yield batch

        try:
            if self.sharded:
                return self.shard_gradients(self.sharded, batches)
            return self.updater.gradients(checked())
        except Interrupted:
            self.updater.clear()
            before.restore()
            raise

    def shard_gradients(self, sharded: ShardedUpdater[BatchT], batches: list[BatchT]) -> Sums:
        """The gradients of all shards, and an agreement of all processes."""
        stop = bool(self.stop)
        status = (
            self.saver.status(stop) if isinstance(self.saver, SharedSaver) else Agreed(stop, 0.0, save=False)
        )
        sums = sharded.gradients(batches, self.progress.step + 1, status)
        if isinstance(self.saver, SharedSaver):
            self.saver.agree(sharded.agreed)
        return sums

    def skipped(self, epoch: int, batch: int) -> None:
        """Tells of an update that was left out because its loss or gradient is not finite."""
        self.progress.guard.skipped(self.progress.step, epoch, batch)
        self.journal.record(self.progress, "event", {"event": "skipped", "batch": batch})
        place = f"step {self.progress.step} (epoch {epoch}, batch {batch})"
        self.report(Note(f"warning: {place} is skipped, its loss or gradient is not finite"))

    def diverged(self, reason: str) -> bool:
        """Whether too many updates were skipped, or weights that are about to be saved are not finite."""
        saves = bool(reason) or self.validation_due(reason) or self.saver.due_by_step()
        return self.progress.guard.exhausted or (saves and not self.state.finite())

    def recover(self) -> None:
        """Returns once to the last good commit with half the learning rate; then raises DivergenceError."""
        guard, step = self.progress.guard, self.progress.step
        cause = (
            f"not finite at {guard.describe()}" if guard.exhausted else f"weights not finite at step {step}"
        )
        if guard.recoveries or not self.saver.recover():
            tried = (
                "even with half the learning rate" if guard.recoveries else "with no checkpoint to return to"
            )
            raise DivergenceError(f"training diverged, {tried}: {cause}; lower optim.lr or check that data")
        self.batches = None
        self.progress.lr_factor *= 0.5
        self.progress.guard = Guard(recoveries=1)
        self.journal.record(self.progress, "event", {"event": "recovered", "from": step})
        now = f"back to step {self.progress.step} with half the learning rate"
        self.report(Note(f"warning: training diverged, {cause}; {now}"))

    def validation_due(self, reason: str) -> bool:
        """Whether this step is validated and was not yet: every so often, and where training ends."""
        progress, every = self.progress, self.train.validate_every
        due = progress.step % every == 0 if every else progress.index == 0
        counts = progress.step > 0 or bool(self.train.start_from)  # borrowed weights are the ones to beat
        return (bool(reason) or (due and counts)) and progress.validated != progress.step

    def validate(self) -> None:
        """Measures the averaged weights; nothing but the progress changes. Raises Interrupted before that."""
        before = Bookmark(self.task)
        self.task.model.eval()
        try:
            with torch.no_grad(), self.state.averager.swap(), self.interruptible():
                metrics = self.group.first(self.task.validate())
        finally:
            self.task.model.train()
            before.restore()
        nll = metrics["nll"]
        best = self.progress.judge(nll, self.train.min_delta, self.train.keep_best)
        self.state.schedule.observe(better=self.progress.stale == 0)
        averages = self.state.averager.observe(self.progress.history, self.progress.step)
        self.saver.dirty = True
        metrics = {"nll": nll, "perplexity": perplexity(nll)} | metrics
        self.journal.record(self.progress, "valid", metrics)
        averaged = self.state.averager.count > 0
        self.report(Validated(self.progress.step, metrics, best, averaged))
        if averages:
            self.journal.record(self.progress, "event", {"event": "averaging"})
            self.report(Note("validation stalls: from here on the average of the weights counts"))

    def interrupted(self) -> str:
        """Saves if it can, and says what is saved."""
        saved = "the last checkpoint stands"
        if self.state.finite():
            try:
                self.saver.save(final=True)
                saved = f"step {self.progress.step} is saved"
            except StorageError as error:
                self.report(Note(f"warning: step {self.progress.step} is not saved: {error}"))
        return f"interrupted: {saved}; run the same command again to resume"
