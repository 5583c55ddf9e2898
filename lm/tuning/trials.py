"""Trials of a search: drawn by optuna, stored in its journal, and claimed by one process at a time.

A trial enters the journal in one line with all its drawn values. The process that works on it holds a lock,
which the OS releases when the process ends. An unlocked, unfinished trial is resumed. The drawn values depend
only on the seed, the number of the trial and the journal. So an interrupted search continues as if it had not
been interrupted.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import optuna
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from lm.config.settings import Settings
from lm.disk.filelock import FileLock, held
from lm.disk.jsonfile import SEAL, is_sealed, sealed
from lm.disk.storage import make_folder, read_file, storage_errors, temporary_folder
from lm.errors import StorageError, visible
from lm.runs.metrics_log import MetricsLog
from lm.stop import deferred_signals
from lm.tuning.space import Parameter, SearchValue, Space, settings_of

JOURNAL, CLAIMS, LOCK = "journal.log", "claims", "lock"
STUDY = "tune"
_LONGEST = 1 << 28  # bytes of a journal
VALIDATED = "validated"  # attribute of a trial: updates of its validations
DIVERGED = "diverged"  # attribute of a failed trial whose values made it diverge
_FACTS = ("reason", "updates", "nll", "step", DIVERGED)  # attributes of an ended trial, and SEAL of them
WORST = 1e6  # nats a token of what diverged, for the sampler, which learns nothing from failed trials

Sampler = Literal["tpe", "random"]
Status = Literal["running", "interrupted", "finished", "pruned", "failed"]
_STATES: dict[TrialState, Status] = {
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of a trial. ``nll`` is that of its best validation in nats per token, at update ``step``.

    A failed trial has ``diverged`` if its values, and not the machine or the text, made it fail.
    """

    state: Status
    reason: str
    nll: float = math.nan
    step: int = -1
    updates: int = 0
    diverged: bool = False


class Trial:
    """A trial claimed by the present process. The training engine calls :meth:`verdict`."""

    def __init__(self, study: optuna.Study, frozen: FrozenTrial, claim: FileLock, *, prune: bool) -> None:
        self.number = frozen.number
        self.drawn: dict[str, SearchValue] = dict(frozen.params)
        self.entry = optuna.trial.Trial(study, frozen._trial_id)
        self.pruned = False
        self._validated: list[int] = list(frozen.user_attrs.get(VALIDATED, ()))
        self._reported = set(frozen.intermediate_values)
        self._claim = claim
        self._prune = prune

    def settings(self, space: Space) -> Settings:
        """Values of the config's keys."""
        return settings_of(space, self.drawn)

    def verdict(self, step: int, nll: float) -> str:
        """Record a validation. Returns the reason to prune the trial, or an empty string.

        Trials are compared by the number of the validation, since batches of other sizes make other updates.
        """
        if step not in self._validated:  # a resumed training may validate again
            self._validated.append(step)
            if len(self._validated) not in self._reported:  # else a process was killed after the report
                self.entry.report(nll, len(self._validated))
            self.entry.set_user_attr(VALIDATED, self._validated)
        self.pruned = self._prune and self.entry.should_prune()
        number = self._validated.index(step) + 1
        return f"worse than the median of the trials at validation {number}" if self.pruned else ""

    def release(self) -> None:
        """Release the claim, so that other processes may resume the trial."""
        self._claim.release()


class Trials:
    """Trials in the journal of a search folder, shared by all its processes."""

    def __init__(self, folder: Path, space: Space, sampler: Sampler, seed: int) -> None:
        self._folder, self._space, self._sampler, self._seed = folder, space, sampler, seed
        make_folder(folder / CLAIMS)
        self._lock = FileLock(folder / LOCK)  # held while reading the trials and adding or ending one
        with self._lock, deferred_signals():
            self._study = _open(folder / JOURNAL)

    def claim(self, limit: int, *, prune: bool) -> Trial | None:
        """Claim the first unfinished, unlocked trial, or else a new one.

        Returns None if there are ``limit`` trials, and all unfinished ones are locked.
        """
        with self._lock, deferred_signals():
            trials = self._study.get_trials(deepcopy=False)
            for frozen in trials:
                lock = FileLock(self._folder / CLAIMS / str(frozen.number))
                if frozen.state == TrialState.RUNNING and lock.acquire(wait=False):
                    return Trial(self._study, frozen, lock, prune=prune)
            if len(trials) >= limit:
                return None
            ranges = {parameter.key: _distribution(parameter) for parameter in self._space}
            # drawn in a copy in memory, so that the journal gets all of it or nothing
            seen = map(_as_seen, trials)
            drawn = next_draw(f"{self._seed}/{len(trials)}", seen, ranges, self._sampler)
            self._study.add_trial(drawn)
            frozen = self._study.get_trials(deepcopy=False)[-1]
            lock = FileLock(self._folder / CLAIMS / str(frozen.number))
            lock.acquire()
            return Trial(self._study, frozen, lock, prune=prune)

    def finish(self, trial: Trial, outcome: Outcome) -> None:
        """Record the end of a trial."""
        facts: dict[str, Any] = {"reason": outcome.reason, "updates": outcome.updates}
        if math.isfinite(outcome.nll):
            facts |= {"nll": outcome.nll, "step": outcome.step}
        if outcome.diverged:
            facts[DIVERGED] = True
        states = {state: theirs for theirs, state in _STATES.items()}
        with self._lock, deferred_signals():
            for name, value in facts.items():
                trial.entry.set_user_attr(name, value)
            record = _record(trial.number, outcome.state, trial.drawn, trial.entry.user_attrs)
            trial.entry.set_user_attr(SEAL, sealed(record)[SEAL])
            value = outcome.nll if outcome.state == "finished" else None
            self._study.tell(trial.entry, value, state=states[outcome.state])

    def rows(self) -> list[dict[str, Any]]:
        """The rows of :func:`read_rows`."""
        with self._lock:
            return self._rows()

    def publish(self, write: Callable[[list[dict[str, Any]]], None]) -> None:
        """Call ``write`` with the rows under a lock, so that the newest rows are written last."""
        with self._lock, deferred_signals():
            write(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        with _damage(self._folder / JOURNAL):
            return _rows_of(self._study, self._space)


def read_rows(folder: Path, space: Space) -> list[dict[str, Any]]:
    """Trials in order, as JSON objects: trial, state, nll, step, updates, values and reason.

    The folder of the search may be read-only. Raises StorageError if the journal is damaged.
    """
    journal = folder / JOURNAL
    if not journal.exists():
        return []
    whole, line_end, _ = read_file(journal, limit=_LONGEST).rpartition(b"\n")
    with (
        storage_errors(temporary_folder()),
        TemporaryDirectory(prefix="highrank-") as copy,
        _damage(journal),
    ):
        path = Path(copy) / JOURNAL
        path.write_bytes(whole + line_end)
        rows = _rows_of(_load(path), space)
    for row in rows:
        if row["state"] == "running" and not held(folder / CLAIMS / str(row["trial"])):
            row["state"] = "interrupted"
    return rows


def _record(
    number: int, state: Status, drawn: Mapping[str, SearchValue], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """Number, state, drawn values and facts of an ended trial, which its ``SEAL`` protects."""
    facts = {name: attributes[name] for name in _FACTS if name in attributes}
    return {"trial": number, "state": state, "drawn": dict(drawn), **facts}


def _require_seals(study: optuna.Study) -> None:
    """Raise ValueError for an ended trial that was changed. Those of earlier versions have no seal."""
    for frozen in study.get_trials(deepcopy=False):
        attributes = frozen.user_attrs
        if frozen.state == TrialState.RUNNING or SEAL not in attributes:
            continue
        record = _record(frozen.number, _STATES[frozen.state], frozen.params, attributes)
        same = frozen.state != TrialState.COMPLETE or frozen.value == attributes.get("nll")
        if not same or not is_sealed(record | {SEAL: attributes[SEAL]}):
            raise ValueError(f"trial {frozen.number} differs from its SHA-256")


def _rows_of(study: optuna.Study, space: Space) -> list[dict[str, Any]]:
    return [
        {
            "trial": frozen.number,
            "state": _STATES[frozen.state],
            **{name: frozen.user_attrs.get(name) for name in ("nll", "step", "updates")},
            "values": {key: setting.value for key, setting in settings_of(space, frozen.params).items()},
            "reason": frozen.user_attrs.get("reason", ""),
        }
        for frozen in study.get_trials(deepcopy=False)
    ]


def next_draw(
    seed: str,
    trials: Iterable[FrozenTrial],
    ranges: Mapping[str, optuna.distributions.BaseDistribution],
    sampler: Sampler = "tpe",
) -> FrozenTrial:
    """The trial after ``trials``, a function of its arguments only, and in no journal."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4])
    samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    study = optuna.create_study(direction="minimize", sampler=samplers[sampler](seed=number))
    study.add_trials(trials)
    drawn = study.ask(dict(ranges))
    return optuna.trial.create_trial(
        state=TrialState.RUNNING, params=drawn.params, distributions=drawn.distributions
    )


def _as_seen(trial: FrozenTrial) -> FrozenTrial:
    """A trial as the sampler sees it: one that diverged is the worst of all."""
    if not trial.user_attrs.get(DIVERGED):
        return trial
    return optuna.trial.create_trial(
        state=TrialState.COMPLETE, value=WORST, params=trial.params, distributions=trial.distributions
    )


def _open(path: Path) -> optuna.Study:
    """Open the study in a journal, which is created if missing. Raises StorageError if it is damaged."""
    with FileLock(path.with_suffix(".lock")):
        MetricsLog(path).close()  # drops a torn last line
    with storage_errors(path), _damage(path):
        return _load(path)


def _load(path: Path) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # the search reports trials itself
    lock: Any = FileLock(path.with_suffix(".lock"))  # optuna's own lock outlives a killed process
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
    if STUDY not in optuna.get_all_study_names(storage):
        optuna.create_study(storage=storage, study_name=STUDY, direction="minimize")
    study = optuna.load_study(study_name=STUDY, storage=storage, pruner=optuna.pruners.MedianPruner())
    _require_seals(study)
    return study


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """A section in which errors of optuna are those of a damaged journal."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        what = visible(error)[:100]  # it may quote the file
        raise StorageError(
            f"{path}: damaged or foreign ({what}); restore it, or choose another --out"
        ) from error


def _distribution(parameter: Parameter) -> optuna.distributions.BaseDistribution:
    if parameter.choices:
        return optuna.distributions.CategoricalDistribution(parameter.choices)
    if parameter.whole:
        low, high = int(parameter.low), int(parameter.high)
        return optuna.distributions.IntDistribution(low, high, log=parameter.log)
    return optuna.distributions.FloatDistribution(parameter.low, parameter.high, log=parameter.log)
