"""The engine: non-finite numbers, failing disks, damaged checkpoints, early stopping, what is kept."""

import math
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lm.engine.journal import Journal
from lm.engine.optim import trainable
from lm.engine.state import Guard, Progress, all_finite, load_model_tensors, model_tensors
from lm.errors import DivergenceError, Interrupted, StorageError
from lm.runs.checkpoint import CheckpointStore
from lm.runs.metrics_log import MetricsLog
from tests.support.tiny_task import (
    Faults,
    Notes,
    TinyModel,
    TinyTask,
    lines,
    open_run,
    outcome,
    steps,
    train,
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
    train(folder, settings, task=TinyTask(Faults(**{fault: lambda call: call == 3})), notes=notes)
    assert [(event["event"], event["step"], event["epoch"], event["batch"]) for event in events(folder)] == [
        ("skipped", 3, 1, 2)
    ]
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
    with pytest.raises(DivergenceError, match=r"none of 3 updates was finite: step 1 .*; lower optim\.lr"):
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
    train(folder.with_name("plain"), settings)
    plain = {line["step"]: line for line in lines(folder.with_name("plain")) if line["split"] == "train"}
    for line in lines(folder):
        if line["split"] == "train":
            assert line["lr"] == pytest.approx(plain[line["step"]]["lr"] * (0.5 if line["step"] > 4 else 1.0))
    assert any("training diverged" in line and "back to step 4" in line for line in notes.lines)
    with pytest.raises(DivergenceError, match="even with half the learning rate: not finite at step 31 "):
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
        assert run.checkpoints.pointed("best") == best
        assert [run.checkpoints.open("best").step for _ in best] == best
    assert set(steps(folder)) >= {8, *best}


def test_pointers_never_dangle_while_a_recovery_prunes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prune(store: CheckpointStore, keep: Collection[int]) -> None:
        real(store, keep)
        assert {*store.pointed("best"), *store.pointed("last")} <= set(steps(folder))

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
    assert guard.describe().startswith("… step 820 (epoch 1, batch 820), ")


def test_a_validation_that_is_not_finite_is_never_best(folder: Path) -> None:
    values = [NAN, 3.0, -math.inf, 2.0, NAN, math.inf]
    result = train(folder, {"max_epochs": 6, "keep_best": 3}, task=with_values(values))
    assert (result.best_nll, result.best_step) == (2.0, 20)
    with open_run(folder) as run:
        assert run.checkpoints.pointed("best") == [20, 10]
    assert lines(folder)[0]["nll"] is None
    nothing = train(folder.with_name("nan"), {"max_epochs": 2}, task=with_values([NAN] * 2))
    assert math.isnan(nothing.best_nll)
    assert nothing.best_step == -1


def with_values(values: list[float]) -> TinyTask:
    return TinyTask(Faults(nll=lambda call: values[call - 1]))


@pytest.mark.parametrize(
    ("patience", "min_delta", "epochs"), [(1, 0.0, 3), (2, 0.0, 6), (2, 0.5, 4), (3, 0.5, 8), (0, 0.0, 9)]
)
def test_training_stops_after_patience_validations_without_a_better_one(
    folder: Path, patience: int, min_delta: float, epochs: int
) -> None:
    values = [3.0, 2.5, 2.6, 2.4, 2.45, 2.41, 2.2, 1.95, 2.0]
    settings = {"max_epochs": 9, "patience": patience, "min_delta": min_delta}
    result = train(folder, settings, task=with_values(values))
    expected = epochs_by_definition(values, patience, min_delta)
    assert result.epoch == expected
    assert result.best_nll == min(values[:expected])


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


def epochs_by_definition(values: list[float], patience: int, min_delta: float) -> int:
    reference, stale = math.inf, 0
    for number, value in enumerate(values, 1):
        better = value < reference - min_delta
        reference, stale = (value, 0) if better else (reference, stale + 1)
        if stale == patience > 0:
            return number
    return len(values)


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
            assert run.checkpoints.pointed("best") == best
            assert run.checkpoints.pointed("last") == [5 * epoch]
        assert set(steps(folder)) == {*best, done, done + 5}


def failing(times: set[int], function: Callable[..., Any]) -> Callable[..., Any]:
    """Raises StorageError at these calls."""
    calls = 0

    def call(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in times:
            raise StorageError("disk full")
        return function(*arguments)

    return call


def test_two_failed_commits_are_warnings_and_change_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max_steps": 12, "checkpoint_every": 2}
    train(folder.with_name("good"), settings)
    notes = Notes()
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "commit", failing({2, 3, 5, 6}, CheckpointStore.commit))
        patch.setattr(MetricsLog, "append", failing({1}, MetricsLog.append))
        train(folder, settings, notes=notes)
    assert len([line for line in notes.lines if "is not saved, training goes on: disk full" in line]) >= 4
    assert (folder / "metrics.jsonl").read_bytes() == (
        folder.with_name("good") / "metrics.jsonl"
    ).read_bytes()
    with open_run(folder) as one, open_run(folder.with_name("good")) as two:
        assert (
            one.checkpoints.open("last").files["model.safetensors"]
            == (two.checkpoints.open("last").files["model.safetensors"])
        )


def test_lines_that_the_disk_refuses_are_written_later_in_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MetricsLog, "append", failing({1, 2, 3, 6, 8}, MetricsLog.append))
    with open_run(folder) as run:
        journal = Journal(run)
        for step in (1, 2, 3):
            journal.record(Progress(step=step), "train", {"nll": NAN})
        assert not lines(folder)
        with pytest.raises(StorageError):
            journal.flush()
        assert journal.flush()[0] == (folder / "metrics.jsonl").stat().st_size
        assert [(line["step"], line["nll"]) for line in lines(folder)] == [(1, None), (2, None), (3, None)]
        journal.record(Progress(step=4), "train", {})
        journal.cut(0)
        journal.flush()
        assert not lines(folder)


def test_three_failed_commits_in_a_row_end_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckpointStore, "commit", failing({3, 4, 5}, CheckpointStore.commit))
    task = TinyTask()
    with pytest.raises(StorageError, match="disk full"):
        train(folder, {"max_steps": 99, "checkpoint_every": 2}, task=task)
    assert task.losses == 6  # the commits of steps 4, 5 (validation) and 6 failed
    assert steps(folder) == [0, 2]


def test_the_best_commit_that_could_not_be_saved_is_not_pointed_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckpointStore, "commit", failing({3}, CheckpointStore.commit))
    result = train(folder, {"max_epochs": 3}, task=with_values([3.0, 1.0, 2.0]))
    assert (result.best_nll, result.best_step) == (2.0, 15)


def test_no_pointer_stays_at_a_best_commit_that_is_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckpointStore, "commit", failing({3}, CheckpointStore.commit))
    train(folder, {"max_epochs": 4}, task=with_values([3.0, 1.0, NAN, NAN]))
    with open_run(folder) as run:
        assert set(run.checkpoints.pointed("best")) <= set(steps(folder))


def test_a_last_commit_that_fails_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckpointStore, "commit", failing({2}, CheckpointStore.commit))
    with pytest.raises(StorageError):
        train(folder, {"max_steps": 3})


def test_too_small_a_disk_is_refused_at_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    with open_run(folder) as run:
        monkeypatch.setattr(type(run), "preflight", lambda self, size: asked.append(size))
    train(folder, {"max_steps": 2, "keep_last": 3, "keep_best": 2}, {"average": "ema"})
    stored = sum(tensor.nbytes for tensor in model_tensors(TinyModel()).values())
    trained = sum(weight.nbytes for weight in trainable(TinyModel()).values())
    assert asked == [(2 * stored + 2 * trained) * 7]  # weights and averages; two moments of Adam


def test_a_training_that_is_at_its_end_is_noted(folder: Path) -> None:
    notes = Notes()
    train(folder, {"max_steps": 3}, notes=notes)
    assert not any("nothing to do" in line for line in notes.lines)
    train(folder, {"max_steps": 2}, notes=notes)
    assert notes.lines[-1] == "nothing to do at step 3: train.max_steps = 2 reached"


def test_a_damaged_commit_is_skipped_reported_and_replaced(folder: Path) -> None:
    settings = {"max_steps": 9, "checkpoint_every": 3}
    train(folder.with_name("good"), settings)
    train(folder, settings | {"max_steps": 7})
    newest = folder / "checkpoints" / "step-00000007" / "model.safetensors"
    data = bytearray(newest.read_bytes())
    data[-5] ^= 1
    newest.write_bytes(data)
    notes = Notes()
    train(folder, settings, notes=notes)
    assert any("skipped a damaged checkpoint" in line and "model.safetensors" in line for line in notes.lines)
    assert "resuming after step 6" in notes.lines
    assert outcome(folder) == outcome(folder.with_name("good"))
    assert 7 not in steps(folder)


def test_records_without_a_checkpoint_are_told_of_before_they_go(folder: Path) -> None:
    train(folder, {"max_steps": 9, "checkpoint_every": 3})
    whole, said = (
        outcome(folder),
        "the log has records but there is no checkpoint: starting over with an empty log",
    )
    shutil.rmtree(folder / "checkpoints")
    notes = Notes()
    train(folder, {"max_steps": 9, "checkpoint_every": 3}, notes=notes)
    assert said in notes.lines
    assert outcome(folder) == whole
    fresh = Notes()
    train(folder.with_name("fresh"), {"max_steps": 3}, notes=fresh)
    assert said not in fresh.lines


def test_a_best_commit_that_a_damaged_one_outdid_is_forgotten(folder: Path) -> None:
    values = [3.0, 2.0, 4.0]
    train(folder, {"max_epochs": 2, "checkpoint_every": 2, "keep_last": 2}, task=with_values(values))
    assert steps(folder) == [8, 10]
    (folder / "checkpoints" / "step-00000010" / "model.safetensors").write_bytes(b"")
    result = train(folder, {"max_epochs": 2}, task=with_values(values[2:]))
    assert (result.best_nll, result.best_step) == (4.0, 10)


def test_resuming_elsewhere_is_noted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(folder, {"max_steps": 1})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    numpy = np.__version__
    monkeypatch.setattr(np, "__version__", "9.9.9")
    notes = Notes()
    train(folder, {"max_steps": 2}, notes=notes)
    assert "threads was 1, is 2: results may differ" in notes.lines
    assert f"numpy was {numpy}, is 9.9.9: results may differ" in notes.lines


def test_a_checkpoint_of_another_model_is_refused(folder: Path) -> None:
    train(folder, {"max_steps": 1})
    task = TinyTask()
    task.model.output = torch.nn.Linear(6, 12)
    with pytest.raises(StorageError, match="do not fit the model: size mismatch for output"):
        train(folder, {"max_steps": 2}, task=task)


def test_tied_frozen_and_counting_tensors_survive(folder: Path) -> None:
    task = TinyTask()
    train(folder, {"max_steps": 4}, {"average": "uniform", "lr": 0.1}, task=task)
    with open_run(folder) as run:
        commit = run.checkpoints.open("last")
    assert commit.tensors("model").keys() == task.model.state_dict().keys()
    for group in ("model", "average"):
        fresh = TinyModel()
        load_model_tensors(fresh, commit.tensors(group))
        for name, tensor in commit.tensors(group).items():
            assert torch.equal(fresh.state_dict()[name], tensor)
        assert fresh.output.weight is fresh.embedding.weight
        assert torch.equal(commit.tensors(group)["output.weight"], fresh.embedding.weight)
    assert int(commit.tensors("model")["uses"]) == 4
    with pytest.raises(StorageError, match=r"cell\.bias_hh"):
        load_model_tensors(
            fresh, {name: t for name, t in commit.tensors("model").items() if name != "cell.bias_hh"}
        )
