"""Averages of weights against brute force, and when they begin."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lm.engine.averaging import Averager
from lm.engine.config import OptimConfig
from lm.errors import Interrupted, StorageError
from lm.runs.checkpoint import CheckpointStore
from tests.support.tiny_task import TinyTask, lines, train


def walk(model: nn.Module, count: int) -> Iterator[dict[str, Tensor]]:
    """Random weights, as training would leave them."""
    for _ in range(count):
        for parameter in model.parameters():
            parameter.data += torch.randn_like(parameter)
        yield {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("start", [0, 1, 5])
@pytest.mark.parametrize("average", ["ema", "uniform", "none"])
def test_averages_are_their_definitions(average: str, start: int) -> None:
    model = nn.Linear(3, 2).double()
    averager = Averager(OptimConfig(average=average, average_start=start, ema_decay=0.7), model)  # type: ignore[arg-type]
    seen = []
    for step, weights in enumerate(walk(model, 9), 1):
        averager.update(step)
        seen.append(weights)
        taken = seen[start:]
        for name, parameter in model.named_parameters():
            if average == "none" or not taken:
                expected = weights[name]
            elif average == "uniform":
                expected = torch.stack([one[name] for one in taken]).mean(0)
            else:
                shares = [0.7**age for age in reversed(range(len(taken)))]
                expected = torch.zeros_like(weights[name])
                for share, one in zip(shares, taken, strict=True):
                    expected = expected + share / sum(shares) * one[name]
            with averager.swap():
                torch.testing.assert_close(parameter.detach(), expected, rtol=1e-12, atol=1e-12)
            assert torch.equal(parameter, weights[name])
    assert averager.count == (0 if average == "none" else 9 - start)


def test_a_long_exponential_average_does_not_know_its_beginning() -> None:
    """So published runs, of many times 1 / (1 − decay) updates, keep their averages to rounding."""
    model = nn.Linear(3, 2)
    averager = Averager(OptimConfig(average="ema", ema_decay=0.7), model)
    plain: Tensor | None = None  # the recursion without correction, from the first iterate on
    for step, weights in enumerate(walk(model, 80), 1):
        averager.update(step)
        plain = weights["weight"] if plain is None else torch.lerp(plain, weights["weight"], 0.3)
    assert plain is not None
    torch.testing.assert_close(averager.tensors()["weight"], plain, rtol=1e-6, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=15), st.integers(1, 4), st.sampled_from([0, 30, 70]))
def test_patience_starts_averages_where_the_best_is_old_or_at_the_latest(
    losses: list[int], patience: int, latest: int
) -> None:
    """A validation every 10 updates: where lamb's loop over turns would begin, and never again."""
    config = OptimConfig(average="uniform", average_patience=patience, average_start=latest)
    averager = Averager(config, nn.Linear(1, 1))
    expected, best = None, 0
    for turn, loss in enumerate(losses):
        best = turn if loss < min([*losses[:turn], 99]) else best
        step = 10 * (turn + 1)
        due = turn - best >= patience or (latest > 0 and step >= latest)
        first = due and expected is None
        expected = step if first else expected
        assert averager.observe([float(one) for one in losses[: turn + 1]], step) == first
        assert averager.start == expected


def test_patience_and_trigger_are_not_both_obeyed() -> None:
    with pytest.raises(ValueError, match="set one of them to 0"):
        OptimConfig(average="uniform", average_patience=2, average_trigger=2)
    with pytest.raises(ValueError, match="needs an average of weights"):
        OptimConfig(average_patience=2)


def test_weights_come_back_from_a_swap_that_fails() -> None:
    model = nn.Linear(2, 2)
    averager = Averager(OptimConfig(average="uniform"), model)
    *_, last = (averager.update(step) or weights for step, weights in enumerate(walk(model, 3), 1))
    swap = averager.swap()
    swap.__enter__()
    assert not torch.equal(model.weight, last["weight"])
    with pytest.raises(Interrupted):
        swap.gen.throw(Interrupted("SIGINT"))
    assert torch.equal(model.weight, last["weight"])


def test_averages_of_another_model_are_refused() -> None:
    averager = Averager(OptimConfig(average="ema"), nn.Linear(2, 2))
    with pytest.raises(StorageError, match="averages do not fit the model at 'bias'"):
        averager.load({"weight": torch.zeros(2, 2)}, 3, 0)
    averager.load({}, 0, 0)


def test_a_validation_scores_the_averages(tmp_path: Path) -> None:
    folder, task = tmp_path / "run", TinyTask()
    train(folder, {"max_steps": 5}, {"name": "sgd", "lr": 0.5, "average": "uniform"})
    averages = CheckpointStore.of(folder).open("last").tensors("average")
    task.model.load_state_dict(averages)
    task.model.eval()
    with torch.no_grad():
        nll = [value for value, _ in task.validation()]
    assert lines(folder)[-1]["nll"] == pytest.approx(sum(nll) / len(nll))
