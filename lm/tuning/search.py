"""A hyper-parameter search: a folder of trials, which are ordinary runs, for any number of processes.

::

    DIR/search.json     space and base config
    DIR/journal.log     trials (optuna)
    DIR/trials/N/       run of trial N
    DIR/best.toml       base config with the best values
    DIR/claims/N        locked while a process works on trial N
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from lm.config.difference import changed_keys, changes_text, completed, flat, flat_config
from lm.config.load import C, Resolved, family_of, with_settings
from lm.config.places import find_config
from lm.config.presets import Preset
from lm.config.settings import COMMAND_LINE
from lm.config.write import toml_text
from lm.disk.filelock import FileLock
from lm.disk.jsonfile import SEAL, is_sealed, read_json, sealed, write_json
from lm.disk.storage import make_folder, storage_errors, write_atomic
from lm.ending import shortage
from lm.engine.device import configure_device
from lm.engine.events import Note, Reporter
from lm.engine.limits import require_end
from lm.engine.loop import FitResult, Verdict
from lm.errors import ConfigError, DivergenceError, MisfitError, StorageError, visible
from lm.tuning.space import Space
from lm.tuning.trials import JOURNAL, LOCK, Outcome, Sampler, Status, Trial, Trials

SEARCH, BEST, RUNS = "search.json", "best.toml", "trials"
FREE = ("source", "config.about", "config.extends")  # may differ between the commands of one search

Train = Callable[[Resolved[C], Path, Reporter, Verdict | None], FitResult]
TrialRow = Mapping[str, Any]


@dataclass(frozen=True)
class SearchPlan(Generic[C]):
    """Space, base config and options of a search, all fixed once the search has begun."""

    source: str  # base config, as named by the user
    base: Resolved[C]
    space: Space
    sampler: Sampler
    seed: int
    prune: bool

    def __post_init__(self) -> None:
        """Raise ConfigError if trainings would never end."""
        config: Any = self.base.config  # of either family: both have the section train
        require_end(config.train)

    def saved(self) -> dict[str, Any]:
        """Content of ``search.json``."""
        return {
            "family": family_of(type(self.base.config)),
            "source": self.source,
            "config": self.base.config.model_dump(mode="json"),
            "space": {parameter.key: parameter.entry() for parameter in self.space},
            "sampler": self.sampler,
            "seed": self.seed,
            "prune": self.prune,
        }


class Search(Generic[C]):
    """A search in its folder, which is created if missing.

    Raises ConfigError if the folder holds another search, or the config cannot be trained. Raises
    StorageError if the folder is not that of a search.
    """

    def __init__(self, folder: Path, plan: SearchPlan[C]) -> None:
        self.folder, self.plan = folder, plan
        config: Any = plan.base.config
        configure_device(config.train)
        settle(folder, plan)
        self.trials = Trials(folder, plan.space, plan.sampler, plan.seed)

    def run(
        self,
        limit: int,
        train: Train[C],
        report: Callable[[Path], Reporter],
        notes: Reporter,
        minutes: float = 0.0,
    ) -> None:
        """Work on trials until there are ``limit``, including those of other processes.

        After ``minutes``, if not 0, no trial begins. ``report`` returns the reporter of a trial's training,
        and ``notes`` gets lines about the search. Raises Interrupted after the trial's run is saved. The next
        process on the search resumes the trial. A trial that diverges, takes too much memory, or whose values
        are inconsistent or do not fit the text, is recorded as failed. Other DataErrors and StorageError end
        the search.
        """
        self._note_lost(notes)
        end = time.monotonic() + 60 * minutes if minutes else float("inf")
        while True:
            self.trials.publish(self._write_best)  # first, in case the last command was killed
            trial = self.trials.claim(limit, prune=self.plan.prune) if time.monotonic() < end else None
            if trial is None:
                break
            try:
                outcome = self._work(trial, train, report, notes)
                self.trials.finish(trial, outcome)
            finally:
                trial.release()

    def _note_lost(self, notes: Reporter) -> None:
        """Warn of runs whose trials the journal lacks, because it was damaged or cut."""
        runs = self.folder / RUNS
        with storage_errors(runs):
            found = [int(name) for name in os.listdir(runs) if name.isdecimal()] if runs.is_dir() else []
        known = len(self.trials.rows())  # read later: a trial is in the journal before it has a run
        if lost := sum(number >= known for number in found):
            path = visible(self.folder / JOURNAL)
            notes(
                Note(f"warning: {path}: has lost {lost} trials, whose runs are there; they are drawn again")
            )

    def _work(
        self, trial: Trial, train: Train[C], report: Callable[[Path], Reporter], notes: Reporter
    ) -> Outcome:
        folder = self.folder / RUNS / str(trial.number)
        settings = trial.settings(self.plan.space)
        again = " goes on" if folder.exists() else ""
        values = ", ".join(f"{key} = {value_text(setting.value)}" for key, setting in settings.items())
        notes(Note(f"trial {trial.number}{again}: {values}"))
        base = self.plan.base
        try:
            resolved = with_settings(base, settings, type(base.config))
            result = train(resolved, folder, report(folder), trial.verdict)
        except Exception as error:  # those of the trial's own values end the trial, not the search
            short = shortage(error)
            misfit = isinstance(error, MisfitError) and not settings.keys().isdisjoint(error.keys)
            if short is None and not misfit and not isinstance(error, ConfigError | DivergenceError):
                raise
            diverged = short is None and isinstance(error, DivergenceError)
            outcome = Outcome("failed", str(short or error), diverged=diverged)
        else:
            outcome = _outcome(result, pruned=trial.pruned)
        nll = f", {outcome.nll:.4f} nats a token at update {outcome.step}" if outcome.step >= 0 else ""
        notes(Note(f"trial {trial.number} {outcome.state}{nll}: {outcome.reason}"))
        return outcome

    def _write_best(self, rows: Sequence[TrialRow]) -> None:
        if best := best_of(rows):
            write_atomic(self.folder / BEST, self._best_config(best, len(rows)).encode())

    def _best_config(self, best: TrialRow, count: int) -> str:
        """TOML that extends the base config by the values of ``--set`` and the best values."""
        base = self.plan.base
        folder = self.folder.resolve()
        family, extends = family_of(type(base.config)), self.plan.source
        found = find_config(extends, family)
        extends = found.name if isinstance(found, Preset) else os.path.relpath(found.resolve(), folder)
        dumped = flat_config(base.config)
        values = {
            key: dumped[key] for key, where in base.provenance.items() if where == COMMAND_LINE and "." in key
        }
        about = f"best of {count} trials from {self.plan.source}: {best['nll']:.4f} nats a token"
        return toml_text({"extends": extends, "about": about} | values | best["values"])


def _outcome(result: FitResult, *, pruned: bool) -> Outcome:
    if result.best_step < 0:
        return Outcome("failed", "all validations were non-finite", updates=result.step, diverged=True)
    state: Status = "pruned" if pruned else "finished"
    return Outcome(state, result.reason, result.best_nll, result.best_step, result.step)


def settle(folder: Path, plan: SearchPlan[C]) -> None:
    """Write ``search.json`` the first time, and compare the plan with it later.

    Raises ConfigError with the differences if the plan is another.
    """
    path, now = folder / SEARCH, plan.saved()
    make_folder(folder)
    with storage_errors(folder):
        names = [name for name in os.listdir(folder) if not name.endswith(".tmp") and name != LOCK]
    if names and SEARCH not in names:
        raise StorageError(f"{folder}: contains {names[0]} but no {SEARCH}; choose a new or empty --out")
    with FileLock(folder / LOCK):  # another process may begin at the same time
        if not path.is_file():
            write_json(path, sealed(now))
            return
    was, now = completed(flat(read_search(folder)), type(plan.base.config), "config."), flat(now)
    if fixed := [key for key in changed_keys(was, now) if key not in FREE]:
        raise ConfigError(
            f"{folder}: holds another search: {changes_text(fixed, was, now, 4)}; "
            "give the old values, choose another --out, or remove the folder"
        )


def read_search(folder: Path) -> dict[str, Any]:
    """Read ``search.json``. Raises StorageError if there is no search, or a damaged one."""
    path = folder / SEARCH
    if not path.is_file():
        raise StorageError(f"{folder}: contains no search; omit --show, or name the --out of a search")
    try:
        saved: Any = read_json(path)
    except StorageError as error:
        if isinstance(error.__cause__, OSError):
            raise
        saved = None
    whole = isinstance(saved, dict) and {"family", "config", "space", "sampler", "seed"} <= saved.keys()
    if not whole or not is_sealed(saved):
        raise StorageError(f"{path}: damaged or foreign; restore it, or choose another --out")
    return {name: value for name, value in saved.items() if name != SEAL}


def best_of(rows: Sequence[TrialRow]) -> TrialRow | None:
    """Finished trial with the lowest validation loss, the first of equals, or None."""
    finished = [row for row in rows if row["state"] == "finished"]
    return min(finished, key=lambda row: float(row["nll"]), default=None)


def value_text(value: object) -> str:
    """Format a value for tables and lines."""
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)
