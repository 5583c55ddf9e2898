"""The engine: non-finite numbers, recoveries, early stopping, what is kept."""

import json
import math
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lm.engine.state import Guard, TrainingState, all_finite
from lm.errors import DivergenceError, Interrupted
from lm.runs.checkpoint import CheckpointStore
from tests.support.outcomes import outcome
from tests.support.tiny_task import (
    Faults,
    Notes,
    TinyTask,
    lines,
    open_run,
    steps,
    train,
    with_values,
)

NAN = math.nan


def events(folder: Path) -> list[dict[str, Any]]:
    return [line for line in lines(folder) if line["split"] == "event"]


def assert_only_finite(folder: Path) -> None:
    with open_run(folder) as run:
        for step in steps(folder):
            commit = run.checkpoints.open(f"step-{step}")
            assert all_finite(tensor for group in commit.groups for tensor in commit.tensors(group).values())


@pytest.mark.parametrize("fault", ["nan_loss", "nan_gradient"])
def test_a_bad_update_is_skipped_counted_and_leaves_no_trace(folder: Path, fault: str) -> None:
    settings = {"max_steps": 4, "checkpoint_every": 1, "keep_last": 9, "log_every": 1}
    notes = Notes()
    task = TinyTask(Faults(**{fault: lambda call: call == 3}))
    train(folder, settings, task=task, notes=notes)
    assert [(event["event"], event["step"], event["epoch"], event["batch"]) for event in events(folder)] == [
        ("skipped", 3, 1, 2)
    ]
    assert task.skips == [1]
    assert len([line for line in notes.lines if "step 3 (epoch 1, batch 2) is skipped" in line]) == 1
    with open_run(folder) as run:
        before, after, later = (run.checkpoints.open(f"step-{step}") for step in (2, 3, 4))
        for group in before.groups:
            assert before.files[f"{group}.safetensors"] == after.files[f"{group}.safetensors"]
        assert later.files["model.safetensors"] != after.files["model.safetensors"]
    assert [line["step"] for line in lines(folder) if line["split"] == "train"] == [1, 2, 4]
    assert_only_finite(folder)


def test_a_training_without_any_update_has_failed(folder: Path) -> None:
    """However short it is; and goes on once the cause is gone."""
    with pytest.raises(DivergenceError, match=r"none of 3 updates was finite; lower optim\.lr"):
        train(folder, {"max_steps": 3}, task=TinyTask(Faults(nan_loss=lambda call: True)))
    assert train(folder, {"max_steps": 5}).step == 5


def test_ten_bad_updates_in_a_row_return_to_the_last_good_commit_once(folder: Path) -> None:
    settings = {"max_steps": 30, "checkpoint_every": 4, "log_every": 1, "validate_every": 100}
    notes = Notes()
    faults = Faults(nan_loss=lambda call: 7 <= call < 17)
    result = train(folder, settings, task=TinyTask(faults), notes=notes)
    assert result.step == 30
    assert [(event["event"], event["step"]) for event in events(folder)] == [("recovered", 4)]
    assert events(folder)[0]["from"] == 16
    timing = [json.loads(line) for line in (folder / "timing.jsonl").read_text().splitlines()]
    assert [line["step"] for line in timing] == [*range(1, 31), 30], "nothing of the updates that are undone"
    train(folder.with_name("plain"), settings)
    plain = {line["step"]: line for line in lines(folder.with_name("plain")) if line["split"] == "train"}
    for line in lines(folder):
        if line["split"] == "train":
            assert line["lr"] == pytest.approx(plain[line["step"]]["lr"] * (0.5 if line["step"] > 4 else 1.0))
    assert any("training diverged" in line and "back to step 4" in line for line in notes.lines)
    with pytest.raises(
        DivergenceError, match="half the learning rate: not finite at 10 updates, from step 31"
    ):
        train(folder, settings | {"max_steps": 60}, task=TinyTask(Faults(nan_loss=lambda call: True)))
    assert_only_finite(folder)


def test_a_recovery_is_the_same_after_an_interruption(folder: Path) -> None:
    """The signal's own commit, in the middle of the bad updates, is not what training returns to."""
    settings = {"max_steps": 18, "checkpoint_every": 4, "log_every": 1}
    train(folder.with_name("whole"), settings, task=TinyTask(Faults(nan_loss=lambda call: 6 <= call < 16)))

    def stop(call: int) -> None:
        if call == 10:
            import signal

            signal.raise_signal(signal.SIGTERM)

    first = TinyTask(Faults(nan_loss=lambda call: call >= 6, on_loss=stop))
    with pytest.raises(Interrupted):
        train(folder, settings, task=first)
    train(folder, settings, task=TinyTask(Faults(nan_loss=lambda call: call < 6)))
    assert outcome(folder) == outcome(folder.with_name("whole"))


def test_divergence_before_any_other_commit_returns_to_the_start(folder: Path) -> None:
    with pytest.raises(DivergenceError) as error:
        train(folder, {"max_steps": 99}, task=TinyTask(Faults(nan_loss=lambda call: call > 2)))
    assert "\n" not in str(error.value)
    assert "step 10 (epoch 2, batch 4)" in str(error.value)
    assert steps(folder) == [0, 5]
    assert_only_finite(folder)


@pytest.mark.parametrize(
    ("every", "values", "best"), [(5, [3.0, 2.0, 1.0, NAN, NAN], [5]), (10, [2.0, NAN], [])]
)
def test_a_recovery_also_returns_to_the_best_of_then(
    folder: Path, every: int, values: list[float], best: list[int]
) -> None:
    """Validations among the bad updates were better than that at the step that training returns to."""
    settings = {"max_steps": 99, "validate_every": every, "checkpoint_every": 8}
    task = TinyTask(Faults(nan_loss=lambda call: call > 8, nll=lambda call: values[call - 1]))
    with pytest.raises(DivergenceError, match="even with half"):
        train(folder, settings, task=task)
    assert task.validations == len(values)
    with open_run(folder) as run:
        assert run.checkpoints.steps("average-best") == best
        assert [run.checkpoints.open("best").step for _ in best] == best
    assert set(steps(folder)) >= {8, *best}


def test_no_best_commit_goes_while_a_recovery_prunes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prune(store: CheckpointStore, keep: Collection[int]) -> None:
        real(store, keep)
        store.steps("average-best")  # StorageError if one is missing

    real = CheckpointStore.prune
    monkeypatch.setattr(CheckpointStore, "prune", prune)
    settings = {"max_steps": 40, "validate_every": 5, "checkpoint_every": 8}
    task = TinyTask(Faults(nan_loss=lambda call: 8 < call < 19, nll=lambda call: 1 / call))
    assert train(folder, settings, task=task).best_step == 40


def test_weights_that_overflow_are_never_committed(folder: Path) -> None:
    optim = {"name": "sgd", "lr": 1e30, "weight_decay": 1e30}
    with pytest.raises(
        DivergenceError, match="even with half the learning rate: weights not finite at step 1"
    ):
        train(folder, {"max_steps": 40, "checkpoint_every": 1}, optim)
    assert_only_finite(folder)


def test_five_per_cent_of_the_last_thousand_updates_are_too_many() -> None:
    guard = Guard()
    for step in range(1, 2001):
        guard.skipped(step, 1, step) if step % 21 == 0 else guard.passed()
        assert not guard.exhausted
    guard = Guard()
    for step in range(1, 1000):
        guard.skipped(step, 1, step) if step % 20 == 0 else guard.passed()
        assert not guard.exhausted
    guard.skipped(1000, 1, 1000)
    assert guard.exhausted
    ends = "from step 20 (epoch 1, batch 20) to step 1000 (epoch 1, batch 1000)"
    assert guard.describe() == f"50 updates, {ends}"


def test_a_skipped_update_is_forgotten_after_a_thousand_others() -> None:
    guard = Guard()
    for step in (1, *range(41, 1002, 20)):
        guard.passed()
        guard.skipped(step, 1, step)
        assert not guard.exhausted
    assert len(guard.recent) == 49


@pytest.mark.parametrize("group", ["model", "optimizer", "average"])
def test_what_is_not_finite_in_any_group_is_noticed(group: str) -> None:
    groups = {name: {"x": torch.ones(2)} for name in ("model", "optimizer", "average")}
    state: Any = SimpleNamespace(groups=lambda: groups)
    assert TrainingState.finite(state)
    groups[group]["x"] = torch.tensor([1.0, math.inf])
    assert not TrainingState.finite(state)


def test_a_validation_that_is_not_finite_is_never_best(folder: Path) -> None:
    values = [NAN, 3.0, -math.inf, 2.0, NAN, math.inf]
    result = train(folder, {"max_epochs": 6, "keep_best": 3}, task=with_values(values))
    assert (result.best_nll, result.best_step) == (2.0, 20)
    with open_run(folder) as run:
        assert run.checkpoints.steps("average-best") == [20, 10]
    assert lines(folder)[0]["nll"] is None
    nothing = train(folder.with_name("nan"), {"max_epochs": 2}, task=with_values([NAN] * 2))
    assert math.isnan(nothing.best_nll)
    assert nothing.best_step == -1


@pytest.mark.parametrize(
    ("patience", "min_delta", "epochs"), [(1, 0.0, 3), (2, 0.0, 6), (2, 0.5, 3), (3, 0.5, 7), (0, 0.0, 9)]
)
def test_training_stops_after_patience_validations_without_a_better_one(
    folder: Path, patience: int, min_delta: float, epochs: int
) -> None:
    values = [3.0, 2.5, 2.6, 2.4, 2.45, 2.41, 2.2, 1.95, 2.0]
    settings = {"max_epochs": 9, "patience": patience, "min_delta": min_delta}
    result = train(folder, settings, task=with_values(values))
    assert result.epoch == epochs
    assert result.best_nll == min(values[:epochs])


def test_the_plateau_schedule_hears_of_validations(folder: Path) -> None:
    settings = {"max_steps": 6, "validate_every": 2, "log_every": 1, "min_delta": 0.5}
    optim = {"schedule": "plateau"}
    train(folder.with_name("falling"), settings, optim, with_values([3.0, 2.0, 1.0]))
    train(folder, settings, optim, with_values([2.0, 1.6, 1.9]))
    rates = [
        [line["lr"] for line in lines(run) if line["split"] == "train"]
        for run in (folder, folder.with_name("falling"))
    ]
    assert [rate / full for rate, full in zip(*rates, strict=True)] == pytest.approx([1, 1, 1, 1, 0.5, 0.5])


def test_the_k_best_and_the_last_ones_are_kept(folder: Path) -> None:
    values = [5.0, 3.0, 4.0, 2.0, 6.0, 7.0, 2.5, 8.0]
    settings = {"max_epochs": 8, "keep_best": 3, "keep_last": 2}
    for epoch in range(1, 9):
        done = 5 * (epoch - 1)
        task = TinyTask(Faults(nll=lambda call, epoch=epoch: values[epoch - 1]))
        train(folder, settings | {"max_epochs": epoch}, task=task)
        seen = sorted((value, 5 * number) for number, value in enumerate(values[:epoch], 1))
        best = [step for _, step in seen[:3]]
        with open_run(folder) as run:
            assert run.checkpoints.steps("average-best") == best
            assert run.checkpoints.steps("last") == [5 * epoch]
        assert set(steps(folder)) == {*best, done, done + 5}


def test_a_best_commit_that_a_damaged_one_outdid_is_forgotten(folder: Path) -> None:
    values = [3.0, 2.0, 4.0]
    train(folder, {"max_epochs": 2, "checkpoint_every": 2, "keep_last": 2}, task=with_values(values))
    assert steps(folder) == [8, 10]
    (folder / "checkpoints" / "step-00000010" / "model.safetensors").write_bytes(b"")
    result = train(folder, {"max_epochs": 2}, task=with_values(values[2:]))
    assert (result.best_nll, result.best_step) == (4.0, 10)
