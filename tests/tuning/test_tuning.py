"""Hyper-parameter search: drawing, resuming, sharing, pruning, failing, and what is left of it."""

import math
import multiprocessing
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_search import SPACE, N, forked, plan, runs_of, search, train

pytest.importorskip("optuna")

from dialog.config import DialogConfig
from lm.config.load import load_config, read_config
from lm.disk.filelock import FileLock
from lm.disk.jsonfile import read_json, sealed, write_json
from lm.engine.events import no_report
from lm.errors import ConfigError, DataError, Interrupted, MisfitError, OutOfMemory, StorageError
from lm.runs.checkpoint import CheckpointStore
from lm.tuning.display import draw_trials, is_near, place
from lm.tuning.search import Search, best_of, settle
from lm.tuning.trials import Outcome, Trials, read_rows
from lm.tuning.workers import SearchJob, _failure, work_together


def test_trials_are_drawn_from_the_space(undisturbed: Any) -> None:
    rows, _ = undisturbed
    assert [row["trial"] for row in rows] == list(range(N))
    for values in (row["values"] for row in rows):
        assert 1e-3 <= values["optim.lr"] <= 0.3
        assert 0.1 <= values["optim.clip_norm"] <= 5
        assert values["train.accumulate"] in (1, 2)
        assert isinstance(values["train.accumulate"], int)
        assert values["optim.betas"] in ([0.9, 0.99], [0.8, 0.9])
    assert len({row["values"]["optim.lr"] for row in rows}) == N
    assert {row["state"] for row in rows} == {"finished", "pruned"}


def test_a_search_that_goes_on_equals_one_that_never_stopped(folder: Path, undisturbed: Any) -> None:
    """Killed and interrupted inside trials, and extended: trials and every bit of their runs are equal."""
    place, planned = folder / "search", plan(folder)
    assert forked(place, planned, 4, strike=(signal.SIGKILL, 10))() == -signal.SIGKILL
    assert [row["state"] for row in Trials(place, planned.space, "tpe", 1).rows()] == ["finished", "running"]
    assert [row["state"] for row in read_rows(place, planned.space)] == ["finished", "interrupted"]
    assert forked(place, planned, 4, strike=(signal.SIGTERM, 2))() == Interrupted.exit_code
    assert forked(place, planned, 4)() == 0
    assert forked(place, planned, N, strike=(signal.SIGKILL, 9))() == -signal.SIGKILL
    assert (search(place, planned, N), runs_of(place, N)) == undisturbed


def test_the_seed_and_the_sampler_decide_what_is_drawn(folder: Path, undisturbed: Any) -> None:
    values = [row["values"] for row in undisturbed[0]]
    other = search(folder / "other", plan(folder, seed=2), 2)
    assert [row["values"] for row in other] != values[:2]
    random = search(folder / "random", plan(folder, sampler="random"), N)
    assert [row["values"] for row in random][-1] != values[-1]


def test_processes_share_one_journal_and_do_the_trials_once(folder: Path) -> None:
    place, planned = folder / "search", plan(folder, prune=False)
    ends = [forked(place, planned, 7) for _ in range(2)]
    assert [end() for end in ends] == [0, 0]
    rows = Trials(place, planned.space, "tpe", 1).rows()
    assert [row["state"] for row in rows] == ["finished"] * 7
    assert sorted(path.name for path in (place / "trials").iterdir()) == [str(number) for number in range(7)]


def test_a_trial_that_another_process_works_on_is_left_to_it(folder: Path) -> None:
    planned = plan(folder)
    first, second = (Trials(folder / "search", planned.space, "tpe", 1) for _ in range(2))
    one = first.claim(2, prune=False)
    two = second.claim(2, prune=False)
    assert one
    assert two
    assert (one.number, two.number) == (0, 1)
    assert first.claim(2, prune=False) is None
    two.release()
    again = first.claim(2, prune=False)
    assert again
    assert (again.number, again.drawn) == (1, two.drawn)


def test_trials_behind_the_median_are_pruned_and_others_are_not(folder: Path) -> None:
    planned = plan(folder)
    trials = Trials(folder / "search", planned.space, "tpe", 1)

    def judged(nll: float, *, prune: bool = True, step: int = 2) -> str:
        trial = trials.claim(100, prune=prune)
        assert trial
        told = trial.verdict(step, nll)
        assert trial.verdict(step, 99.0) == told, "a validation that is repeated counts once"
        trial.entry.study.tell(trial.entry, nll)
        trial.release()
        return told

    assert [judged(nll) for nll in (1.0, 2.0, 3.0, 4.0, 5.0)] == [""] * 5
    assert judged(3.1) == "worse than the median of the trials at validation 1"
    assert judged(2.9) == ""
    assert judged(3.1, step=3) == "worse than the median of the trials at validation 1", (
        "its first validation, too"
    )
    assert judged(9.0, prune=False) == ""


def test_a_pruned_trial_is_a_run_that_ended_at_a_validation(undisturbed: Any) -> None:
    rows, runs = undisturbed
    pruned = [row for row in rows if row["state"] == "pruned"]
    assert pruned
    for row in pruned:
        assert (row["updates"], row["step"]) == (2, 2)
        assert row["reason"] == "worse than the median of the trials at validation 1"
        assert runs[row["trial"]][1].count(b'"valid"') == 1
    assert best_of(rows) not in pruned


def test_a_trial_that_diverges_is_recorded_and_the_search_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINY_BAD_LR", "0.05")
    notes: list[str] = []
    planned = plan(folder, prune=False, overrides=["train.max_steps=24"])
    rows = search(folder / "search", planned, 4, notes.append)
    bad = [row["values"]["optim.lr"] > 0.05 for row in rows]
    assert 0 < sum(bad) < 4
    assert [row["state"] == "failed" for row in rows] == bad
    assert all("diverged" in row["reason"] for row in rows if row["state"] == "failed")
    assert best_of(rows)
    assert len([line for line in notes if " failed: " in line]) == sum(bad)


def test_rates_that_diverge_are_drawn_less_often(folder: Path) -> None:
    trials = Trials(folder / "search", plan(folder).space, "tpe", 1)
    rates = []
    for _ in range(60):
        trial = trials.claim(60, prune=False)
        assert trial
        rates.append(float(trial.drawn["optim.lr"]))
        if rates[-1] > 3e-3:
            outcome = Outcome("failed", "", diverged=True)
        else:
            outcome = Outcome("finished", "", -math.log(rates[-1]))
        trials.finish(trial, outcome)
        trial.release()
    assert sum(rate > 3e-3 for rate in rates[:20]) > 10, "four fifths of the range"
    assert sum(rate > 3e-3 for rate in rates[-20:]) < 10


def test_a_trial_that_takes_too_much_memory_ends_alone(folder: Path) -> None:
    def greedy(resolved: Any, run: Path, report: Any, verdict: Any) -> Any:
        if run.name == "0":
            raise RuntimeError("std::bad_alloc")
        return train(resolved, run, report, verdict)

    begun = Search(folder / "out", plan(folder))
    begun.run(2, greedy, lambda run: no_report, no_report)
    first, second = begun.trials.rows()
    assert (first["state"], second["state"]) == ("failed", "finished")
    assert first["reason"] == str(OutOfMemory())


def test_values_that_do_not_go_together_are_a_failed_trial(folder: Path) -> None:
    space = """
[space]
"optim.schedule" = {choices = ["constant", "cosine"]}
"optim.warmup_steps" = {low = 0, high = 99}
"""
    rows = search(folder / "search", plan(folder, space=space, overrides=["optim.decay_steps=50"]), 6)
    wrong = [
        r["values"]["optim.schedule"] == "cosine" and r["values"]["optim.warmup_steps"] >= 50 for r in rows
    ]
    assert 0 < sum(wrong) < 6
    assert [row["state"] == "failed" for row in rows] == wrong
    assert all("optim.decay_steps" in row["reason"] for row in rows if row["state"] == "failed")


def test_values_that_do_not_fit_the_text_are_a_failed_trial(folder: Path) -> None:
    def unfit(resolved: Any, *others: Any) -> Any:
        raise MisfitError(f"a.txt: too short for optim.lr = {resolved.config.optim.lr}", ["optim.lr"])

    def broken(*others: Any) -> Any:
        raise DataError("a.txt: damaged")

    begun = Search(folder / "search", plan(folder))
    begun.run(2, unfit, lambda run: no_report, no_report)
    assert [row["state"] for row in begun.trials.rows()] == ["failed", "failed"]
    with pytest.raises(DataError, match="damaged"):
        begun.run(3, broken, lambda run: no_report, no_report)


def test_the_best_values_are_a_config(folder: Path, undisturbed: Any) -> None:
    planned = plan(folder, overrides=["train.log_every=7", "head.embedding_size=none"])
    rows = search(folder / "search", planned, 3)
    best = best_of(rows)
    assert best
    assert best["nll"] == min(row["nll"] for row in rows)
    again = load_config(str(folder / "search" / "best.toml"), DialogConfig, family="dialog")
    run = read_config(folder / "search" / "trials" / str(best["trial"]) / "config.json", DialogConfig)
    free = {"extends": True, "about": True}
    assert again.config.model_dump(exclude=free) == run.config.model_dump(exclude=free)
    assert again.config.train.log_every == 7
    assert run.provenance["optim.lr"] == f"{folder / 'space.toml'}:3"
    assert "best of 3 trials" in again.config.about


def test_a_folder_keeps_to_its_search(folder: Path) -> None:
    search(folder / "search", plan(folder), 1)
    for changes, told in (
        ({"seed": 2}, r"seed = 2 \(was 1\)"),
        ({"overrides": ["train.seed=4"]}, r"config.train.seed = 4 \(was 1\)"),
        ({"space": SPACE.replace("0.3", "0.2")}, r"space.optim.lr.high = 0.2 \(was 0.3\)"),
    ):
        with pytest.raises(ConfigError, match=f"holds another search: {told}; give the old values"):
            Search(folder / "search", plan(folder, **changes))
    Search(folder / "search", plan(folder, overrides=["about=x"]))
    (folder / "else").mkdir()
    (folder / "else" / "notes.txt").touch()
    with pytest.raises(StorageError, match=r"contains notes\.txt but no search\.json"):
        Search(folder / "else", plan(folder))


def test_a_search_of_a_version_without_a_key_goes_on(folder: Path) -> None:
    """The key had its default then; with another value now it is another search."""
    search(folder / "search", plan(folder), 1)
    path = folder / "search" / "search.json"
    saved = read_json(path)
    assert isinstance(saved, dict)
    del saved["config"]["optim"]["weight_decay"]  # type: ignore[call-overload, index, union-attr]
    write_json(path, sealed(saved))
    assert len(search(folder / "search", plan(folder), 2)) == 2
    with pytest.raises(ConfigError, match=r"config.optim.weight_decay = 0.5 \(was 0.0\)"):
        Search(folder / "search", plan(folder, overrides=["optim.weight_decay=0.5"]))


def test_of_two_searches_that_begin_at_once_the_second_keeps_to_the_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second has seen an empty folder, and waits for the lock of the first."""
    out = folder / "search"

    class Late(FileLock):
        def acquire(self, wait: bool = True) -> bool:
            monkeypatch.undo()
            settle(out, plan(folder))
            return super().acquire(wait)

    monkeypatch.setattr("lm.tuning.search.FileLock", Late)
    with pytest.raises(ConfigError, match=r"holds another search: seed = 2 \(was 1\)"):
        Search(out, plan(folder, seed=2))


def test_the_best_are_written_alone(folder: Path) -> None:
    trials, held = Search(folder / "search", plan(folder)).trials, list[bool]()
    trials.publish(lambda rows: held.append(not FileLock(folder / "search/lock").acquire(wait=False)))
    assert held == [True]


def test_a_damaged_journal_is_told_and_a_torn_last_line_is_dropped(folder: Path) -> None:
    planned = plan(folder)
    rows = search(folder / "search", planned, 2)
    journal = folder / "search" / "journal.log"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 8, "work')
    assert Trials(folder / "search", planned.space, "tpe", 1).rows() == rows
    assert journal.read_bytes() == whole
    journal.write_bytes(whole.replace(b'"op_code"', b'"op_cod', 1))
    with pytest.raises(StorageError, match=r"journal\.log: damaged or foreign"):
        Trials(folder / "search", planned.space, "tpe", 1)


@pytest.mark.parametrize("name", ["nll", "step", "updates", "values", "optim.lr", "reason"])
def test_a_changed_number_of_an_ended_trial_is_noticed(folder: Path, name: str) -> None:
    planned = plan(folder)
    search(folder / "search", planned, 1)
    journal = folder / "search" / "journal.log"
    changed, count = re.subn(rf'("{name}":\s*\[?"?)(?!null)(\w)', r"\g<1>9\2", journal.read_text())
    assert count
    journal.write_text(changed)
    with pytest.raises(StorageError, match=r"journal\.log: damaged or foreign \(trial 0 differs"):
        Trials(folder / "search", planned.space, "tpe", 1)


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [(-9, 75, "was ended by SIGKILL"), (75, 75, "was interrupted"), (3, 1, "ended with exit code 3")],
)
def test_a_worker_that_ends_without_a_report_is_told_in_a_line(end: int, code: int, words: str) -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=ends, args=(end,))
    process.start()
    theirs.close()
    process.join()
    told = _failure(3, process, ours)
    assert str(told).startswith(f"worker 3 {words}")
    assert str(told).endswith("; run the same command again to resume")
    assert told.exit_code == code


def ends(code: int) -> None:
    """End this process with an exit code, or by a signal."""
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


@pytest.mark.slow
def test_workers_share_the_trials_and_tell_what_ended_them(folder: Path) -> None:
    planned = plan(folder, prune=False)
    work_together(SearchJob(folder / "search", planned, train, 6, 0.0, 1), 2)
    rows = Trials(folder / "search", planned.space, "tpe", 1).rows()
    assert [row["state"] for row in rows] == ["finished"] * 6
    broken = SearchJob(folder / "nowhere.toml" / "x", planned, train, 6, 0.0, 1)
    (folder / "nowhere.toml").touch()
    with pytest.raises(StorageError, match="a part of the path is a file"):
        work_together(broken, 2)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_save_and_end_when_their_parent_does(folder: Path, number: signal.Signals) -> None:
    planned = plan(folder, prune=False, overrides=["train.max_steps=100000"])
    job = SearchJob(folder / "search", planned, train, 2, 0.0, 1)
    if not (pid := os.fork()):
        try:
            work_together(job, 2)
        except Interrupted as error:
            os._exit(error.exit_code)
        os._exit(70)
    runs = [folder / "search" / "trials" / str(trial) for trial in range(2)]
    try:
        while not all(CheckpointStore.of(run).begun for run in runs):
            time.sleep(0.05)
    finally:
        os.kill(pid, number)  # also where the test is cut off: nothing stays behind
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == (Interrupted.exit_code if number == signal.SIGTERM else -number)
    trials = Trials(folder / "search", planned.space, "tpe", 1)
    freed = 0
    while freed < 2:  # the workers give the trials back as they end
        freed += trials.claim(2, prune=False) is not None
        time.sleep(0.05)
    assert [row["state"] for row in trials.rows()] == ["running"] * 2


def test_where_values_stand_on_their_axes() -> None:
    log = {"low": 1e-4, "high": 1e-2, "log": True}
    assert place(log, 1e-3) == pytest.approx(0.5)
    assert place({"low": -20, "high": 100, "log": False}, 40) == 0.5
    assert [place({"choices": [[1], "x", True]}, value) for value in ([1], "x", True)] == [0.0, 0.5, 1.0]
    assert is_near([0.5, 0.5], [0.6, 0.4])
    assert not is_near([0.5, 0.5], [0.5, 0.7])


def test_a_picture_of_the_search(folder: Path, undisturbed: Any) -> None:
    entries = {parameter.key: parameter.entry() for parameter in plan(folder).space}
    for name in ("one.svg", "two.svg", "one.png"):
        draw_trials(folder / name, "tiny", entries, undisturbed[0])
    assert (folder / "one.svg").read_bytes() == (folder / "two.svg").read_bytes()
    with pytest.raises(DataError, match="no finished trial"):
        draw_trials(folder / "none.svg", "tiny", entries, [])
