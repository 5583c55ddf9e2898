"""Training on a disk that fills, fails or damages: warnings, errors, and what is resumed."""

import math
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lm.disk.storage import remove_tree
from lm.engine.journal import Journal
from lm.engine.optim import trainable
from lm.engine.state import Progress, load_model_tensors, model_tensors
from lm.errors import DivergenceError, RunMovedError, StorageError
from lm.runs.check import check_run
from lm.runs.checkpoint import CheckpointStore
from lm.runs.metrics_log import MetricsLog
from tests.support.outcomes import outcome
from tests.support.tiny_task import (
    Faults,
    Notes,
    TinyModel,
    TinyTask,
    lines,
    open_run,
    steps,
    train,
    with_values,
)


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


def test_a_failed_commit_displaces_no_best_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = CheckpointStore.commit

    def at_10(store: CheckpointStore, step: int, *rest: Any) -> Any:
        if step == 10:
            raise StorageError("disk full")
        return commit(store, step, *rest)

    monkeypatch.setattr(CheckpointStore, "commit", at_10)
    task = TinyTask(Faults(nll=[9.0, 4.0, 3.9, 4.5, 4.6].__getitem__))
    train(folder, {"max_steps": 20, "validate_every": 5, "keep_best": 1, "keep_last": 1}, task=task)
    assert task.validations == 4
    with open_run(folder) as run:
        assert run.checkpoints.open("best").step == 5


def test_a_commit_by_the_clock_that_fails_waits_for_the_clock_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, notes = [0.0], Notes()

    def pass_time(call: int) -> None:
        now[0] += 10

    monkeypatch.setattr("lm.engine.agreement.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(CheckpointStore, "commit", failing({2, 3}, CheckpointStore.commit))
    settings = {"max_steps": 20, "validate_every": 20, "checkpoint_minutes": 1.0}
    train(folder, settings, task=TinyTask(Faults(on_loss=pass_time)), notes=notes)
    warned = [line for line in notes.lines if "is not saved" in line]
    assert [line.split()[2] for line in warned] == ["6", "12"]


def test_lines_that_the_disk_refuses_are_written_later_in_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MetricsLog, "append", failing({1, 2, 3, 6, 8}, MetricsLog.append))
    with open_run(folder) as run:
        journal = Journal(run)
        for step in (1, 2, 3):
            journal.record(Progress(step=step), "train", {"nll": math.nan})
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


def test_a_training_that_diverges_before_its_first_commit_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckpointStore, "commit", failing({1}, CheckpointStore.commit))
    with pytest.raises(DivergenceError, match="not finite"):
        train(folder, {"max_steps": 30}, task=TinyTask(Faults(nan_loss=lambda call: True)))


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
    for path in (folder / "checkpoints").iterdir():  # as a kill before the first one leaves it
        remove_tree(path)
    (folder / "timing.jsonl").unlink()
    notes = Notes()
    train(folder, {"max_steps": 9, "checkpoint_every": 3}, notes=notes)
    assert said in notes.lines
    assert outcome(folder) == whole
    fresh = Notes()
    train(folder.with_name("fresh"), {"max_steps": 3}, notes=fresh)
    assert said not in fresh.lines


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("signalled", [False, True])
def test_a_folder_that_is_moved_gets_nothing_more(folder: Path, replaced: bool, signalled: bool) -> None:
    """A run in its old place is left alone, and the moved one resumes there to the same end."""
    settings = {"max_steps": 9, "checkpoint_every": 3}
    train(folder.with_name("whole"), settings)
    moved = folder.with_name("moved")

    def move(call: int) -> None:
        if call == 5:
            folder.rename(moved)
            if replaced:
                train(folder, {"max_steps": 1})
            if signalled:
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(RunMovedError, match="moved, removed or replaced during the training"):
        train(folder, settings, task=TinyTask(Faults(on_loss=move)))
    assert folder.exists() == replaced
    if replaced:
        assert CheckpointStore.of(folder).committed() == [0, 1]
        assert not check_run(folder).problems
    train(moved, settings)
    assert outcome(moved) == outcome(folder.with_name("whole"))


def test_resuming_elsewhere_is_noted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(folder, {"max_steps": 1})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    numpy = np.__version__
    monkeypatch.setattr(np, "__version__", "9.9.9")
    instructions = torch.backends.cpu.get_cpu_capability()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX9")
    notes = Notes()
    train(folder, {"max_steps": 2}, notes=notes)
    assert "threads was 1, is 2: results may differ" in notes.lines
    assert f"instructions was {instructions}, is AVX9: results may differ" in notes.lines
    assert f"numpy was {numpy}, is 9.9.9: results may differ" in notes.lines


def test_a_checkpoint_of_another_model_is_refused(folder: Path) -> None:
    train(folder, {"max_steps": 1})
    task = TinyTask()
    task.model.output = torch.nn.Linear(6, 12)
    with pytest.raises(StorageError, match=r"model: output\.weight is 11 × 6 there, and 12 × 6 here;"):
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


def test_the_best_commit_that_could_not_be_saved_is_not_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckpointStore, "commit", failing({3}, CheckpointStore.commit))
    result = train(folder, {"max_epochs": 3}, task=with_values([3.0, 1.0, 2.0]))
    assert (result.best_nll, result.best_step) == (2.0, 15)


def test_no_best_commit_is_named_that_is_gone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckpointStore, "commit", failing({3}, CheckpointStore.commit))
    train(folder, {"max_epochs": 4}, task=with_values([3.0, 1.0, math.nan, math.nan]))
    with open_run(folder) as run:
        assert run.checkpoints.steps("average-best") == [5]


def test_a_validation_that_is_not_finite_is_not_judged_as_the_one_before() -> None:
    progress = Progress(step=10)
    progress.judge(5.0, 0.0, 1)
    assert progress.judged == 5.0
    progress.step = 20
    progress.judge(math.nan, 0.0, 1)
    assert (progress.validated, progress.judged, progress.history) == (20, None, [5.0])
