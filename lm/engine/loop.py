"""The training engine: one loop for every task.

Between two updates, the loop validates and commits if due. A commit holds everything that the future depends
on (:mod:`lm.engine.state`). A process that is killed anywhere and started again therefore continues
bit-identically. Log lines newer than the commit are removed.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from lm.engine.agreement import Agreement, Clock
from lm.engine.averaging import Averager
from lm.engine.config import OptimConfig, TrainConfig
from lm.engine.events import Ended, Note, Reporter, Started, Update
from lm.engine.journal import Journal, NoJournal
from lm.engine.limits import goal_of, limit_reached, require_end
from lm.engine.optim import build_optimizer, commit_bytes
from lm.engine.saving import Saver, commit_step
from lm.engine.schedule import Schedule
from lm.engine.sharded import ShardedUpdater
from lm.engine.shared_saving import Follower, SharedSaver
from lm.engine.state import Bookmark, Guard, LogWindow, Progress, Stateful, TrainingState
from lm.engine.update import Batches, StepLoss, Sums, Updater
from lm.engine.validation import Validator
from lm.errors import DataError, DivergenceError, Interrupted, RunMovedError, StorageError
from lm.measures import guessing_note, learnt
from lm.parallel.group import ALONE, Group
from lm.runs.run import Run

BatchT = TypeVar("BatchT")
Verdict = Callable[[int, float], str]
"""Called after a validation with the step and the last finite nll: a reason to stop training, or ``""``."""


class Task(Stateful, Protocol[BatchT]):
    """Model, data and loss of a training. Batches are on its device; randomness is global."""

    def epoch(self, number: int, start: int) -> Iterator[BatchT]:
        """Batches ``start``, ``start + 1``, … of pass ``number``, from 0: a function of seed, pass and index.

        A batch names the streams that begin, with a fresh carried state. Others go on from the batch before.
        """

    def epoch_length(self) -> int:
        """Approximate number of batches in a pass, for display."""

    def shard(self, batch: BatchT, index: int, count: int) -> BatchT | None:
        """Shard ``index`` of ``count`` contiguous shards of a batch; None if it is empty.

        The rows of carried state are cut by :func:`lm.parallel.shards.slice_of`.
        """

    def loss(self, batch: BatchT) -> StepLoss:
        """The summed loss of a batch, or of a shard of one."""

    def skipped(self, batches: Sequence[BatchT]) -> None:
        """Prepare the carried state, which is as before ``batches``, for the batch after them."""

    def validation(self) -> Iterator[tuple[float, int]]:
        """Sums of nats, and tokens, of the slices of the validation split, by the current weights.

        A slice is a batch or less. The model is in evaluation mode and gradients are disabled. A signal may
        interrupt it at any point.
        """


@dataclass(frozen=True, slots=True)
class FitResult:
    """Outcome of a training."""

    step: int
    epoch: int
    best_nll: float  # nats per token on validation; NaN where no validation was finite
    best_step: int  # -1 where no validation was finite
    reason: str
    minutes: float  # of training, earlier sittings included


def fit(
    task: Task[BatchT],
    train: TrainConfig,
    optim: OptimConfig,
    run: Run | Follower,
    report: Reporter,
    verdict: Verdict | None = None,
    words: int = 0,
    group: Group = ALONE,
    *,
    trained: bool = False,
) -> FitResult:
    """Train until a limit or until validation stops improving; resume if ``run`` holds a commit.

    ``verdict`` may end the training at any validation, as a limit does. A resumed run calls it again if its
    last step was validated. ``words`` is the size of the vocabulary, for a warning about validations near
    guessing. The processes of a ``group`` train together: rank 0 has the run, the others a
    :class:`Follower`. ``trained``: the first weights are validated too, because they are the first to beat.

    The last step is always validated. Suppose a finished run continues with a higher limit. If its former
    last step was due for validation (by ``train.validate_every`` or as the end of a pass), it is
    bit-identical to one uninterrupted run. Otherwise it has one validation more: in the log, among the
    candidates for the best, in early stopping and in the plateau schedule. With any other schedule, the
    weights of equal steps are still the same.

    Raises:
        Interrupted: a signal came; the state is saved.
        DivergenceError: numbers stay non-finite.
        StorageError: three commits in a row failed.
        ConfigError: training would never end.
    """
    require_end(train)
    trained = trained or bool(train.start_from)
    engine = _Engine(task, train, optim, run, report, group, verdict, trained)
    try:
        return engine.fit(words)
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
        verdict: Verdict | None,
        trained: bool,
    ) -> None:
        self.task, self.train, self.optim, self.report = task, train, optim, report
        self.verdict, self.trained = verdict, trained
        clock = Clock(train.checkpoint_minutes)
        self.agreement = Agreement(group, run.stop, clock)
        optimizer = build_optimizer(optim, task.model, train.precision)
        averager = Averager(optim, task.model, skip_first=train.compat == "paper")
        self.state = TrainingState(task, optimizer, Schedule(optim), averager, Progress())
        self.journal: Journal | NoJournal
        self.saver: Saver | SharedSaver
        if isinstance(run, Run):
            self.journal = Journal(run)
            self.saver = Saver(self.state, train, run, self.journal, report, clock)
        else:
            self.journal = NoJournal()
        if group.size > 1:
            leader = self.saver if isinstance(run, Run) else None
            self.saver = SharedSaver(group, self.state, train, leader)
        self.validator = Validator(
            task.validation, train, self.state, self.agreement, self.journal, report, trained=trained
        )
        self.updater = Updater(task.model, task.loss, optimizer, optim, train)
        self.sharded: ShardedUpdater[BatchT] | None = None
        if train.shards > 1:
            self.sharded = ShardedUpdater(self.updater, task.shard, train, group, self.agreement)
        self.batches: Batches[BatchT] | None = None

    @property
    def progress(self) -> Progress:
        return self.state.progress

    @property
    def seconds(self) -> float:
        """Training time so far, earlier sittings included."""
        return self.agreement.outcome.seconds

    def fit(self, words: int) -> FitResult:
        self.saver.preflight(commit_bytes(self.optim, self.task.model))
        self.saver.resume()
        self.agreement.meet()
        self.task.model.train()
        begun = self.progress.step
        goal = goal_of(self.train, self.task.epoch_length(), self.seconds)
        self.report(Started(begun, goal))
        try:
            reason = self.loop()
        except Interrupted:
            raise Interrupted(self.interrupted()) from None
        except DivergenceError:
            self.journal.ended("diverged", self.progress, self.seconds)
            raise
        if self.progress.step == begun > 0:
            self.report(Note(f"nothing to do at step {begun}: {reason}"))
        if not self.progress.best:
            self.saver.require_best()  # lost, and not diverged
        best_nll, best_step = self.progress.best[0] if self.progress.best else (math.nan, -1)
        diverged = words > 0 and not learnt(best_nll, words)
        self.journal.ended("diverged" if diverged else "finished", self.progress, self.seconds)
        if words and not diverged:  # the caller raises an error for that
            self.tell_guessing(best_nll, words)
        minutes = self.seconds / 60
        return FitResult(self.progress.step, self.progress.pass_number, best_nll, best_step, reason, minutes)

    def loop(self) -> str:
        """Train to the end and return the reason for it; raises Interrupted between updates."""
        while True:
            reason = self.reason_to_end()
            if self.diverged(reason):
                self.recover()
                continue
            if self.validation_due(reason):
                self.validator.validate()
                self.saver.dirty = True
                reason = reason or self.reason_to_end()
            if reason or self.commit_due():
                self.saver.save(final=bool(reason))
            if reason:
                self.require_updates()
                return reason
            self.agreement.check()
            self.step()

    def require_updates(self) -> None:
        """Raise DivergenceError if all updates were skipped, because the training learnt nothing."""
        guard, step = self.progress.guard, self.progress.step
        if 0 < step <= guard.in_a_row:
            raise DivergenceError(f"none of {step} updates was finite; lower optim.lr or check the config")

    def tell_guessing(self, best_nll: float, words: int) -> None:
        """Warn of a best validation near guessing, or else of a last one that has diverged."""
        last = self.progress.judged
        warning = guessing_note(best_nll, words)
        if not warning and last is not None and not learnt(last, words):
            warning = f"{guessing_note(last, words)}. It is that of the last validation; the best is kept"
        if warning:
            self.report(Note(warning))

    def reason_to_end(self) -> str:
        """Reason to end training at this step, or ``""``."""
        progress = self.progress
        if reason := limit_reached(self.train, progress, self.seconds):
            return reason
        verdict, judged = self.verdict, progress.judged
        if verdict and judged is not None and progress.validated == progress.step:
            return self.agreement.by_first(lambda: verdict(progress.step, judged))
        return ""

    def step(self) -> None:
        """One update from the next ``train.accumulate`` batches, or fewer at the end of the pass."""
        progress = self.progress
        batches, ends = self.next_batches()
        before = Bookmark(self.task)
        sums = self.gradients(batches, before)
        lr = self.state.schedule.lr(progress.step) * progress.lr_factor * self.lr_scale(sums)
        number, first = progress.epoch + 1, progress.index
        progress.step += 1
        progress.index += len(batches)
        if ends:
            progress.epoch, progress.index, self.batches = number, 0, None
        self.saver.dirty = True
        if sums.finite:
            self.updater.apply(sums, lr)
            self.state.averager.update(progress.step)
            progress.passed(sums.nll, sums.tokens, sums.grad_norm)
        else:
            before.restore()
            self.task.skipped(batches)
            self.skipped(number, first)
        self.updater.clear()
        nll = sums.nll / sums.tokens if sums.finite else math.nan
        self.report(Update(progress.step, number, nll, lr, sums.grad_norm, sums.tokens))
        if progress.step % self.train.log_every == 0 and progress.window.updates:
            self.journal.updates(progress, lr, self.seconds)
            progress.window = LogWindow()

    def next_batches(self) -> tuple[list[BatchT], bool]:
        """Batches of the next update, and True if they end the pass."""
        progress = self.progress
        if self.batches is None:
            self.batches = Batches(self.task.epoch(progress.epoch, progress.index))
        batches = self.batches.take(self.train.accumulate)
        if not batches:
            raise DataError(
                f"epoch {progress.epoch + 1} has no batch {progress.index}; is the training data empty?"
            )
        return batches, self.batches.ended

    def lr_scale(self, sums: Sums) -> float:
        """Factor of this update's window; with ``compat``, that of the previous one while ASGD averages."""
        late = self.progress.late_scale
        averaged = self.optim.average == "uniform" and self.state.averager.takes(self.progress.step + 1)
        if self.train.compat == "paper" and averaged:
            self.progress.late_scale = sums.lr_scale
            return sums.lr_scale if late is None else late
        return sums.lr_scale

    def gradients(self, batches: list[BatchT], before: Bookmark) -> Sums:
        """Compute gradients in the model and return their sums; Interrupted leaves everything unchanged."""

        def checked() -> Iterator[BatchT]:
            for batch in batches:
                self.agreement.check()
                yield batch

        try:
            if self.sharded:
                return self.sharded.gradients(batches, self.progress.step + 1)
            return self.updater.gradients(checked())
        except Interrupted:
            self.updater.clear()
            before.restore()
            raise

    def skipped(self, epoch: int, batch: int) -> None:
        """Record and report an update skipped because its loss or gradient is not finite."""
        self.progress.guard.skipped(self.progress.step, epoch, batch)
        self.journal.record(self.progress, "event", {"event": "skipped", "batch": batch})
        place = f"step {self.progress.step} (epoch {epoch}, batch {batch})"
        self.report(Note(f"warning: {place} is skipped, its loss or gradient is not finite"))

    def diverged(self, reason: str) -> bool:
        """True if too many updates were skipped, or weights about to be saved are not finite."""
        saves = bool(reason) or self.validation_due(reason) or self.commit_due_by_step()
        return self.progress.guard.exhausted or (saves and not self.finite())

    def finite(self) -> bool:
        """True if weights, optimiser state and averages are finite on all processes."""
        return self.agreement.unanimous(self.state.finite())

    def commit_due(self) -> bool:
        """True if the state should be committed now: by step, or because the last commit is too old.

        A commit by the clock must not make a training diverge, so non-finite weights wait for one by step.
        """
        old = self.agreement.outcome.old and self.saver.dirty
        return self.commit_due_by_step() or (old and self.finite())

    def commit_due_by_step(self) -> bool:
        """True if this step is committed on every machine, regardless of its speed."""
        return self.saver.dirty and commit_step(self.progress, self.train)

    def recover(self) -> None:
        """Return once to the last good commit with half the learning rate; then raise DivergenceError."""
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
        """True if this step is due for validation, at an interval or as the last, and not yet validated."""
        progress, every = self.progress, self.train.validate_every
        due = progress.step % every == 0 if every else progress.index == 0
        counts = progress.step > 0 or self.trained
        return (bool(reason) or (due and counts)) and progress.validated != progress.step

    def interrupted(self) -> str:
        """Save if possible; returns a message about the saved step."""
        saved = "the last checkpoint is kept"
        if self.finite():
            try:
                self.saver.save(final=True)
                saved = f"step {self.progress.step} is saved"
            except RunMovedError:
                raise
            except StorageError as error:
                self.report(Note(f"warning: step {self.progress.step} is not saved: {error}"))
        return f"interrupted: {saved}; run the same command again to resume"
