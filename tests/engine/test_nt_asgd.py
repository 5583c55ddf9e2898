"""NT-ASGD against torch.optim: the trigger of the authors' code, its averages, and its two oddities."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lm.measures import nonmonotonic
from tests.support.outcomes import outcome
from tests.support.tiny_task import TinyTask, lines, run_folder, train


def authors_trigger(losses: list[float], nonmono: int = 5) -> list[bool]:
    """``len(best_val_loss) > nonmono and val_loss > min(best_val_loss[:-nonmono])``, epoch by epoch."""
    best: list[float] = []
    fired = []
    for loss in losses:
        fired.append(len(best) > nonmono and loss > min(best[:-nonmono]))
        best.append(loss)
    return fired


@pytest.mark.parametrize("seed", range(20))
def test_the_trigger_is_the_authors(seed: int) -> None:
    losses = torch.rand(12, generator=torch.Generator().manual_seed(seed)).tolist()
    ours = [nonmonotonic(losses[: end + 1], 5) for end in range(12)]
    assert ours == authors_trigger(losses)


def test_no_trigger_before_the_seventh_validation() -> None:
    rising = [float(n) for n in range(9)]
    assert [nonmonotonic(rising[: end + 1], 5) for end in range(9)] == [False] * 6 + [True] * 3
    assert not nonmonotonic([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4], 5)
    assert not nonmonotonic([1.0] * 9, 5), "as good as before is not worse"


def test_without_validations_nothing_is_triggered() -> None:
    assert not nonmonotonic([], 5)


@pytest.mark.parametrize("first", ["borrowed weights", "not finite"])
def test_a_first_validation_that_leaves_no_history_sets_nothing_off(first: str) -> None:
    """Of borrowed weights at step 0, or not finite: neither is in the history that the trigger reads."""
    start = {"start_from": "elsewhere"} if first == "borrowed weights" else {}
    nll = [math.nan if first == "not finite" else 9.0, *([1.0] + [2.0] * 20)]
    task = TinyTask()
    task.faults.nll = lambda call: nll[call - 1]
    optim = {"name": "sgd", "lr": 0.5, "average": "uniform", "average_trigger": 5}
    with run_folder() as folder:
        train(folder, {"max_epochs": 9, **start}, optim, task)
        averaging = [record["step"] for record in lines(folder) if record.get("event") == "averaging"]
    seventh = 7 if start else 8  # validation after an update whose loss is finite
    assert averaging == [5 * seventh]


def reference(updates: int, switch: int, lr: float, clip: float, decay: float) -> tuple[Any, Any]:
    """The authors' loop on the tiny task: SGD, from update ``switch`` on ASGD with its own bookkeeping."""
    task = TinyTask()
    model = task.model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters, lr, weight_decay=decay)
    done = epoch = 0
    while done < updates:
        for batch in task.epoch(epoch, 0):
            if done == switch:
                optimizer = torch.optim.ASGD(parameters, lr, t0=0, lambd=0.0, weight_decay=decay)
            loss = task.loss(batch)
            optimizer.param_groups[0]["lr"] = lr * loss.lr_scale
            optimizer.zero_grad()
            (loss.objective / loss.tokens).backward()
            torch.nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step()
            optimizer.param_groups[0]["lr"] = lr
            done += 1
            if done == updates:
                break
        epoch += 1
    averages = [optimizer.state[p].get("ax", p).clone() for p in parameters]
    return [p.detach().clone() for p in parameters], averages


def test_compat_follows_the_authors_optimiser_to_rounding() -> None:
    """The trigger fires at validation 8 (update 40): ASGD with the late rate, its first iterate left out."""
    nll = [3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.5, 2.0]
    task = TinyTask()
    task.faults.nll = lambda call: nll[call - 1]
    optim = {
        "name": "sgd", "lr": 0.7, "clip_norm": 0.25, "weight_decay": 1e-3, "average": "uniform",
        "average_trigger": 5,
    }  # fmt: skip
    with run_folder() as folder:
        train(folder, {"max_epochs": 9, "compat": "paper"}, optim, task)
        averaging = [record["step"] for record in lines(folder) if record.get("event") == "averaging"]
        assert averaging == [40]
        weights, averages = reference(45, 40, 0.7, 0.25, 1e-3)
        ours = [p.detach() for p in task.model.parameters() if p.requires_grad]
        for mine, theirs in zip(ours, weights, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
        saved = saved_averages(folder)
        names = [name for name, p in task.model.named_parameters() if p.requires_grad]
        for name, theirs in zip(names, averages, strict=True):
            torch.testing.assert_close(saved[name], theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("average", "begins"), [("none", None), ("uniform", 0), ("uniform", 7), ("ema", 0), ("uniform", 20)]
)
def test_compat_applies_a_late_rate_only_while_asgd_averages(average: str, begins: int | None) -> None:
    """Against the authors' loop: SGD has each window's own rate; torch's ASGD has that of the one before."""
    task = TinyTask()
    optim = {"name": "sgd", "lr": 0.7, "clip_norm": 0.25, "average": average, "average_start": begins or 0}
    with run_folder() as folder:
        train(folder, {"max_steps": 17, "compat": "paper", "validate_every": 100}, optim, task)
    switch = begins if average == "uniform" and begins is not None else 100
    weights, _ = reference(17, switch, 0.7, 0.25, 0.0)
    ours = [p.detach() for p in task.model.parameters() if p.requires_grad]
    for mine, theirs in zip(ours, weights, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_without_compat_the_average_is_that_of_all_iterates() -> None:
    """Started by a trigger at update 35, the average after update 40 is the mean of iterates 36 … 40."""
    nll = [1.0] + [2.0] * 20
    optim = {"name": "sgd", "lr": 0.5, "average": "uniform", "average_trigger": 5}
    task = TinyTask()
    task.faults.nll = lambda call: nll[call - 1]
    with run_folder() as folder:
        train(folder, {"max_epochs": 8}, optim, task)
        average = saved_averages(folder)["cell.bias_hh"]
    iterates = []
    for steps in range(36, 41):
        again = TinyTask()
        with run_folder() as folder:
            train(folder, {"max_steps": steps, "validate_every": 1000}, {"name": "sgd", "lr": 0.5}, again)
        iterates.append(again.model.cell.bias_hh.detach().clone())
    torch.testing.assert_close(average, torch.stack(iterates).mean(0), rtol=1e-4, atol=1e-6)


def saved_averages(folder: Path) -> dict[str, torch.Tensor]:
    from lm.runs.checkpoint import CheckpointStore

    return CheckpointStore(folder / "checkpoints").open("last").tensors("average")


@pytest.mark.parametrize("compat", ["none", "paper"])
def test_a_run_stopped_after_the_trigger_resumes_bit_for_bit(compat: str) -> None:
    nll = [1.0] + [2.0] * 20
    optim = {"name": "sgd", "lr": 0.5, "average": "uniform", "average_trigger": 5}

    def run(folder: Path, *limits: int) -> tuple[str, bytes]:
        done = 0
        for limit in limits:
            task = TinyTask()
            before = done  # validations of the sittings before
            task.faults.nll = lambda call, before=before: nll[before + call - 1]  # type: ignore[misc]
            train(folder, {"max_steps": limit, "compat": compat}, optim, task)
            done += task.validations
        return outcome(folder)

    with run_folder() as once, run_folder() as twice:
        assert run(once, 50) == run(twice, 30, 35, 40, 50)


def test_finetuning_ends_where_validation_stalls() -> None:
    nll = [5.0, 4.0, 3.0, 3.5, 3.4, 3.3, 3.2, 3.1, 3.05]
    task = TinyTask()
    task.faults.nll = lambda call: nll[call - 1]
    with run_folder() as folder:
        result = train(folder, {"stop_trigger": 5, "start_from": "elsewhere"}, {"name": "sgd"}, task)
        records = [r["step"] for r in lines(folder) if r.get("split") == "valid"]
    assert records[0] == 0, "the weights that it starts from are the ones to beat"
    expected = authors_trigger(nll[1:]).index(True) + 1  # the one at the start is not in their list
    assert result.step == 5 * expected
    assert "train.stop_trigger" in result.reason
    assert math.isclose(result.best_nll, 3.0)


def test_a_task_seeds_itself_as_the_reference_relies_on() -> None:
    first = TinyTask().model.state_dict()
    second = TinyTask().model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
