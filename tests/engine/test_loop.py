"""The engine: a run that is interrupted or killed anywhere ends as if nothing had happened."""

import itertools
import json
import math
import os
import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import lm.engine.agreement
from lm.engine.config import OptimConfig, TrainConfig
from lm.engine.limits import limit_reached
from lm.engine.loop import fit
from lm.engine.state import Progress
from lm.errors import ConfigError, DataError, Interrupted
from tests.support.outcomes import outcome
from tests.support.tiny_task import (
    Faults,
    Notes,
    TinyTask,
    lines,
    open_run,
    run_folder,
    steps,
    train,
    with_values,
)

SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {"schedule": "constant", "warmup_steps": 3},
    "cosine": {"schedule": "cosine", "warmup_steps": 2, "decay_steps": 6, "min_lr_ratio": 0.1},
    "plateau": {"schedule": "plateau", "plateau_factor": 0.5},
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"name": "adam", "lr": 0.01, "weight_decay": 1e-3},
    "adamw": {"name": "adamw", "lr": 0.01, "weight_decay": 1e-2},
    "muon": {"name": "muon", "lr": 0.01, "weight_decay": 1e-2},
    "sgd": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
}
AVERAGES = ("none", "ema", "uniform")
BUSY = {
    "max_steps": 9,
    "log_every": 2,
    "validate_every": 4,
    "checkpoint_every": 3,
    "accumulate": 2,
    "keep_best": 2,
}


class Killed(BaseException):
    """Ends a training without a chance to save, as SIGKILL does."""


def interrupt(call: int) -> None:
    signal.raise_signal(signal.SIGTERM)


def at(number: int, action: Callable[[], None]) -> Callable[[int], None]:
    return lambda call: action() if call == number else None


def die() -> None:
    raise Killed


def reference(
    folder: Path, settings: dict[str, Any], optim: dict[str, Any] | None = None
) -> tuple[str, bytes]:
    train(folder.with_name("reference"), settings, optim)
    return outcome(folder.with_name("reference"))


def all_combinations() -> Iterator[Any]:
    """Optimisers, schedules and averages; every pair of two of them is in the default suite."""
    for one, optimizer in enumerate(OPTIMIZERS):
        for two, schedule in enumerate(SCHEDULES):
            for three, average in enumerate(AVERAGES):
                marks = () if (one + two + three) % len(AVERAGES) == 0 else pytest.mark.slow
                yield pytest.param(optimizer, schedule, average, marks=marks)


@pytest.mark.parametrize(("optimizer", "schedule", "average"), list(all_combinations()))
def test_stopping_and_resuming_at_every_step_changes_nothing(
    folder: Path, optimizer: str, schedule: str, average: str
) -> None:
    optim = (
        OPTIMIZERS[optimizer]
        | SCHEDULES[schedule]
        | {"average": average, "average_start": 2, "ema_decay": 0.8}
    )
    settings = {"max_steps": 6, "validate_every": 2, "log_every": 4, "keep_last": 1}
    stale = (lambda call: 3.0) if schedule == "plateau" else None  # so that the rate drops
    train(folder.with_name("whole"), settings, optim, TinyTask(Faults(nll=stale)))
    for step in range(1, settings["max_steps"]):
        with pytest.raises(Interrupted, match=f"step {step} is saved; run the same command again"):
            train(folder, settings, optim, TinyTask(Faults(nll=stale, on_loss=interrupt)))
    train(folder, settings, optim, TinyTask(Faults(nll=stale)))
    assert outcome(folder) == outcome(folder.with_name("whole"))


def test_a_training_in_shards_stops_after_the_update_and_resumes(folder: Path) -> None:
    settings = {"max_steps": 4, "shards": 2}
    expected = reference(folder, settings)
    for step in range(1, settings["max_steps"]):
        with pytest.raises(Interrupted, match=f"step {step} is saved"):
            train(folder, settings, task=TinyTask(Faults(on_loss=at(1, lambda: interrupt(1)))))
    train(folder, settings)
    assert outcome(folder) == expected


def test_a_kill_at_any_batch_or_validation_changes_nothing(folder: Path) -> None:
    expected = reference(folder, BUSY)
    whole = TinyTask()
    train(folder.with_name("count"), BUSY, task=whole)
    faults = [Faults(on_loss=at(number, die)) for number in range(1, whole.losses + 1)]
    faults += [Faults(on_window=at(number, die)) for number in range(1, whole.windows + 1)]
    assert len(faults) > 20
    for number, fault in enumerate(faults):
        run = folder.with_name(f"killed-{number}")
        with pytest.raises(Killed):
            train(run, BUSY, task=TinyTask(fault))
        train(run, BUSY)
        assert outcome(run) == expected, number


def test_a_kill_at_any_change_on_disk_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"max_steps": 2, "checkpoint_every": 1, "validate_every": 1, "log_every": 1, "keep_last": 1}
    expected = reference(folder, settings)
    changes, deadline = 0, -1

    def mortal(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal changes
            changes += 1
            if changes == deadline:
                raise Killed
            return function(*arguments, **options)

        return call

    for name in ("rename", "mkdir", "unlink", "rmdir", "ftruncate", "write"):
        monkeypatch.setattr(os, name, mortal(getattr(os, name)))
    for number in itertools.count(1):
        path = folder.with_name(f"killed-{number}")
        with open_run(path) as run:
            changes, deadline = 0, number
            try:
                fit(TinyTask(), TrainConfig(**settings), OptimConfig(), run, Notes())
                break
            except Killed:
                deadline = -1
        train(path, settings)
        assert outcome(path) == expected, number
    assert number >= 40


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_a_signal_between_accumulated_batches_or_in_validation_changes_nothing(
    folder: Path, number: int
) -> None:
    expected = reference(folder, BUSY)
    faults = [
        Faults(on_loss=at(number, lambda: interrupt(0))),
        Faults(on_window=at(number, lambda: interrupt(0))),
    ]
    for run, fault in zip((folder, folder.with_name("second")), faults, strict=True):
        with pytest.raises(Interrupted, match="is saved"):
            train(run, BUSY, task=TinyTask(fault))
        train(run, BUSY)
        assert outcome(run) == expected


def test_an_interrupted_validation_is_done_again(folder: Path) -> None:
    settings = {"max_epochs": 2}
    with pytest.raises(Interrupted):
        train(folder, settings, task=TinyTask(Faults(on_window=at(2, lambda: interrupt(0)))))
    assert not lines(folder)
    train(folder, settings)
    assert [line["step"] for line in lines(folder)] == [5, 10]


def test_a_finished_run_is_left_as_it_is_and_can_be_extended(folder: Path) -> None:
    settings = {"max_steps": 8, "validate_every": 4, "log_every": 1}
    first = train(folder, settings)
    files = {path: path.stat().st_mtime_ns for path in (folder / "checkpoints").rglob("*") if path.is_file()}
    task = TinyTask()
    again = train(folder, settings, task=task)
    assert (again.step, again.best_nll, again.reason) == (first.step, first.best_nll, first.reason)
    assert (task.losses, task.validations) == (0, 0)
    assert files == {path: path.stat().st_mtime_ns for path in files}
    train(folder, settings | {"max_steps": 12})
    assert outcome(folder) == reference(folder, settings | {"max_steps": 12})


@pytest.mark.parametrize(("first", "extra"), [(4, []), (3, [3])])
def test_an_extended_run_equals_a_long_one_but_for_the_validation_where_it_ended(
    folder: Path, first: int, extra: list[int]
) -> None:
    settings = {"validate_every": 2, "log_every": 1}
    whole = folder.with_name("whole")
    train(whole, settings | {"max_steps": 6})
    for end in (first, 6):
        train(folder, settings | {"max_steps": end})
    assert [line for line in lines(folder) if line["step"] not in extra or line["split"] == "train"] == [
        *lines(whole)
    ]
    assert [line["step"] for line in lines(folder) if line["split"] == "valid"] == sorted([2, 4, 6, *extra])
    with open_run(folder) as one, open_run(whole) as two:
        files = [run.checkpoints.open("last").files["model.safetensors"] for run in (one, two)]
    assert files[0] == files[1]
    assert (outcome(folder) == outcome(whole)) == (not extra)


def test_logging_and_validating_more_often_leaves_the_weights_alone(folder: Path) -> None:
    hashes = set()
    for number, changed in enumerate([{}, {"log_every": 1}, {"validate_every": 2}, {"checkpoint_every": 1}]):
        run = folder.with_name(str(number))
        train(run, {"max_steps": 8, "log_every": 5} | changed)
        with open_run(run) as opened:
            commit = opened.checkpoints.open("last")
            hashes.add(
                tuple(commit.files[f"{group}.safetensors"].sha256 for group in ("model", "optimizer", "rng"))
            )
    assert len(hashes) == 1


def test_the_speed_after_a_resumption_is_that_of_the_updates_since(folder: Path) -> None:
    """Those before it are in the means of the same line."""
    settings = {"log_every": 4, "validate_every": 100}
    train(folder, {"max_steps": 7, **settings})
    with open_run(folder) as opened:
        before: Any = opened.checkpoints.open("last").facts
    train(folder, {"max_steps": 8, **settings})
    last = json.loads((folder / "timing.jsonl").read_text().splitlines()[-2])
    assert last["step"] == 8
    tokens = last["tokens_per_second"] * (last["seconds"] - before["seconds"])
    assert tokens == pytest.approx(12), "one update of 12 tokens, not four"


def test_log_lines_are_means_over_tokens(folder: Path) -> None:
    train(folder.with_name("each"), {"max_steps": 6, "log_every": 1})
    train(folder, {"max_steps": 6, "log_every": 3})
    each = [line for line in lines(folder.with_name("each")) if line["split"] == "train"]
    means = [line for line in lines(folder) if line["split"] == "train"]
    assert [line["step"] for line in means] == [3, 6]
    for line, three in zip(means, (each[:3], each[3:]), strict=True):
        assert line["nll"] == pytest.approx(sum(one["nll"] for one in three) / 3, rel=1e-12)
        assert line["perplexity"] == pytest.approx(math.exp(line["nll"]))
        assert line["tokens"] == sum(one["tokens"] for one in three) == 36
        assert line["lr"] == three[-1]["lr"]
    first = [0.5 + 0.1 * float(batch[0, 0]) for batch in TinyTask().epoch(0, 0)]  # lr_scale of the batches
    assert [line["lr"] for line in each[:5]] == pytest.approx([1e-3 * scale for scale in first])
    timing = [json.loads(line) for line in (folder / "timing.jsonl").read_text().splitlines()]
    assert [line["step"] for line in timing] == [3, 6, 6]
    assert all(line["tokens_per_second"] > 0 for line in timing[:2])
    assert timing[2]["ended"] == "finished"


def test_the_limit_of_time_is_in_minutes() -> None:
    train = TrainConfig(max_minutes=2.0)
    reached = [bool(limit_reached(train, Progress(), seconds)) for seconds in (3.0, 119.0, 120.0)]
    assert reached == [False, False, True]


def test_max_minutes_and_elapsed_time_count_earlier_sittings(folder: Path) -> None:
    with pytest.raises(Interrupted):
        train(
            folder,
            {"max_steps": 9},
            task=TinyTask(Faults(on_loss=lambda call: interrupt(0) if call == 4 else None)),
        )
    with open_run(folder) as run:
        spent = run.checkpoints.open("last").facts["seconds"]
    result = train(folder, {"max_minutes": 0.9 * spent / 60})
    assert (result.step, result.reason[:17]) == (4, "train.max_minutes")
    assert result.minutes * 60 > spent
    assert lines(folder)[-1]["split"] == "valid"


@pytest.mark.parametrize("fault", ["none", "infinite weights"])
def test_commits_by_the_clock_change_neither_state_nor_log(
    folder: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(where: Path, minutes_an_update: float) -> tuple[str, bytes]:
        now = [0.0]
        monkeypatch.setattr(lm.engine.agreement, "time", SimpleNamespace(monotonic=lambda: now[0]))
        task = TinyTask()

        def on_loss(call: int) -> None:
            now[0] += 60 * minutes_an_update
            if fault != "none" and call == 8:
                with torch.no_grad():
                    task.model.cell.bias_hh.fill_(math.inf)

        task.faults.on_loss = on_loss
        train(where, {"max_steps": 30, "validate_every": 5, "keep_last": 99, "log_every": 1}, task=task)
        return outcome(where)

    fast, slow = folder.with_name("fast"), folder.with_name("slow")
    assert trained(fast, 0.0) == trained(slow, 2.5)
    assert set(steps(slow)) > set(steps(fast)) == {0, 5, 10, 15, 20, 25, 30}
    if fault == "none":  # never older than the five minutes of the default, which two updates take
        assert max(later - step for step, later in pairwise(steps(slow))) == 2


def test_epochs_end_where_the_data_ends_and_short_groups_are_updates_too(folder: Path) -> None:
    result = train(folder, {"max_epochs": 2, "accumulate": 3})
    assert (result.step, result.epoch) == (4, 2)
    assert [(line["step"], line["epoch"]) for line in lines(folder)] == [(2, 1), (4, 2)]


def test_training_that_cannot_end_or_begin_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.max_steps"):
        train(folder, {})
    with pytest.raises(DataError, match="empty"):
        train(folder.with_name("empty"), {"max_steps": 3}, task=TinyTask(length=0))


def test_bfloat16_trains_and_resumes_exactly(folder: Path) -> None:
    settings = {"max_steps": 4, "precision": "bfloat16"}
    expected = reference(folder, settings)
    assert expected != reference(folder.with_name("x") / "float32", settings | {"precision": "float32"})
    with pytest.raises(Interrupted):
        train(folder, settings, task=TinyTask(Faults(on_loss=at(2, lambda: interrupt(0)))))
    train(folder, settings)
    assert outcome(folder) == expected


@pytest.mark.parametrize(("perplexity", "warned"), [(9.3, True), (9.1, False)])
def test_a_training_near_guessing_is_told_once(perplexity: float, warned: bool) -> None:
    task, notes = TinyTask(), Notes()
    task.faults.nll = lambda _: math.log(perplexity)
    with run_folder() as folder, open_run(folder) as run:
        fit(task, TrainConfig(max_steps=5, validate_every=1), OptimConfig(), run, notes, words=11)
    assert task.validations == 5
    assert sum("near guessing among 11 words" in line for line in notes.lines) == warned


@pytest.mark.parametrize(
    ("first", "last", "told"), [(2.0, 23.0, True), (2.0, 21.0, False), (23.0, 24.0, False)]
)
def test_a_last_validation_beyond_guessing_is_told(first: float, last: float, told: bool) -> None:
    """Of a training whose best validation has diverged, the caller's error tells."""
    task, notes = with_values([math.log(first), math.log(last)]), Notes()
    with run_folder() as folder, open_run(folder) as run:
        fit(task, TrainConfig(max_steps=2, validate_every=1), OptimConfig(), run, notes, words=11)
    found = [line for line in notes.lines if "more than twice that of guessing among 11 words" in line]
    assert found == [line for line in found if line.endswith("that of the last validation; the best is kept")]
    assert len(found) == told
