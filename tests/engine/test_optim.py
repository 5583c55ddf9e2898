"""Schedules against closed formulas, averages against brute force, updates against plain torch."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lm.engine.config import OptimConfig, TrainConfig
from lm.engine.device import chosen_device, configure_device
from lm.engine.memory import training_memory
from lm.engine.optim import (
    Averager,
    Schedule,
    build_optimizer,
    freeze,
    load_optimizer_tensors,
    optimizer_numbers,
    optimizer_tensors,
    trainable,
)
from lm.engine.rng import load_rng, rng_tensors, seed_everything
from lm.engine.update import Batches, StepLoss, Updater
from lm.errors import ConfigError, Interrupted, StorageError

STEPS = range(0, 60)


def rates(**config: Any) -> list[float]:
    schedule = Schedule(OptimConfig(lr=2.0, **config))
    return [schedule.lr(step) for step in STEPS]


@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_constant_and_cosine_rates_are_their_formulas(warmup: int) -> None:
    ramp = [min(1.0, (step + 1) / warmup) if warmup else 1.0 for step in STEPS]
    assert rates(warmup_steps=warmup) == pytest.approx([2.0 * up for up in ramp])
    cosine = []
    for step in STEPS:
        phase = math.pi * (step - warmup) / (50 - warmup)
        cosine.append(2.0 if step < warmup else 0.2 if step >= 50 else 0.2 + 1.8 * (1 + math.cos(phase)) / 2)
    found = rates(warmup_steps=warmup, schedule="cosine", decay_steps=50, min_lr_ratio=0.1)
    assert found == pytest.approx([up * value for up, value in zip(ramp, cosine, strict=True)])


def test_one_cycle_is_torchs_up_to_where_its_phases_begin() -> None:
    """Torch counts a phase from its first step to its last, and so reaches each end one step earlier."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 2.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 2.0, total_steps=52, pct_start=12 / 52, cycle_momentum=False, final_div_factor=0.4
    )
    expected = []
    for _ in range(52):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step() if len(expected) < 52 else None
    found = rates(schedule="one_cycle", warmup_steps=11, decay_steps=51, min_lr_ratio=0.1)
    assert expected[0] == pytest.approx(2.0 / 25)
    assert found[:11] == pytest.approx(expected[1:12])
    assert found[11:52] == pytest.approx(expected[11:52], rel=1e-6)
    assert found[51:] == pytest.approx([0.2] * 9)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.booleans(), max_size=20),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.3]),
)
def test_plateau_drops_after_patience_stale_validations(
    validations: list[bool], patience: int, lowest: float
) -> None:
    config = OptimConfig(lr=2.0, schedule="plateau", plateau_patience=patience, min_lr_ratio=lowest)
    schedule, resumed = Schedule(config), Schedule(config)
    stale, drops = 0, 0
    for better in validations:
        schedule.observe(better)
        resumed.observe(better)
        state = resumed.state()
        resumed = Schedule(config)
        resumed.load(state)
        stale = 0 if better else stale + 1
        if stale > patience:
            drops, stale = drops + 1, 0
        assert schedule.lr(9) == resumed.lr(9) == pytest.approx(2.0 * max(lowest, 0.5**drops))


def test_only_plateau_heeds_validations() -> None:
    schedule = Schedule(OptimConfig(lr=2.0))
    for _ in range(9):
        schedule.observe(better=False)
    assert schedule.lr(0) == 2.0


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


class Sum(nn.Module):
    """Squared error of a linear map, summed: its gradient over a batch is the sum over the batch's rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.tied = self.linear.weight
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.double()

    def loss(self, batch: Tensor) -> StepLoss:  # (rows, 4)
        objective = (self.linear(batch) - self.frozen).square().sum()
        return StepLoss(objective, objective.detach(), len(batch), lr_scale=float(len(batch)))


CONFIGS = [
    OptimConfig(name="adam", lr=0.1, weight_decay=0.1, clip_norm=0.5),
    OptimConfig(name="adamw", lr=0.1, weight_decay=0.1, clip_norm=0),
    OptimConfig(name="sgd", lr=0.1, momentum=0.5, weight_decay=0.1, clip_norm=0.5),
    OptimConfig(name="sgd", lr=0.1, clip_norm=1e9),
]


def updater(model: Sum, optim: OptimConfig) -> tuple[Updater[Tensor], torch.optim.Optimizer]:
    optimizer = build_optimizer(optim, model, "float32")
    return Updater(model, model.loss, optimizer, optim, TrainConfig(max_steps=1)), optimizer


def plain_step(model: Sum, optimizer: torch.optim.Optimizer, batch: Tensor, optim: OptimConfig) -> float:
    """The textbook update: mean loss, clip_grad_norm_, step; returns the norm before clipping."""
    (model.loss(batch).objective / len(batch)).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), optim.clip_norm or math.inf)
    optimizer.step()
    optimizer.zero_grad()
    return float(norm)


@pytest.mark.parametrize("optim", CONFIGS, ids=lambda optim: f"{optim.name}-{optim.clip_norm:g}")
def test_accumulated_batches_are_one_large_batch(optim: OptimConfig) -> None:
    torch.manual_seed(1)
    ours, theirs = Sum(), Sum()
    theirs.load_state_dict(ours.state_dict())
    update, optimizer = updater(ours, optim)
    plain = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[optim.name]
    options: dict[str, Any] = {"lr": optim.lr, "weight_decay": optim.weight_decay}
    if optim.name == "sgd":
        options["momentum"] = optim.momentum
    reference = plain(theirs.parameters(), **options)
    for _ in range(4):
        whole = torch.randn(7, 4, dtype=torch.float64)
        sums = update.gradients([whole[:4], whole[4:5], whole[5:]])
        total = theirs.loss(whole).objective.item()
        norm = plain_step(theirs, reference, whole, optim)
        assert (sums.tokens, sums.lr_scale) == (7, pytest.approx(7 / 3))
        assert [sums.objective, sums.nll, sums.grad_norm] == pytest.approx([total, total, norm], rel=1e-6)
        update.apply(sums, optim.lr)
        update.clear()
        torch.testing.assert_close(ours.linear.weight, theirs.linear.weight, rtol=1e-5, atol=1e-8)
    assert optimizer_numbers(optim) == sum(
        key.startswith("linear.bias/") and value.dim() > 0
        for key, value in optimizer_tensors(optimizer, ours).items()
    )


@pytest.mark.parametrize("optim", CONFIGS, ids=lambda optim: f"{optim.name}-{optim.clip_norm:g}")
def test_optimizers_continue_exactly_from_their_tensors(optim: OptimConfig) -> None:
    torch.manual_seed(1)
    one, two = Sum(), Sum()
    first, optimizer = updater(one, optim)
    batches = torch.randn(5, 3, 4, dtype=torch.float64)
    for number, batch in enumerate(batches):
        if number == 2:
            two.load_state_dict(one.state_dict())
            second, copied = updater(two, optim)
            load_optimizer_tensors(copied, two, optimizer_tensors(optimizer, one))
        for model_update in [first] if number < 2 else [first, second]:
            model_update.apply(model_update.gradients([batch]), lr=0.1 / (1 + number))
            model_update.clear()
    assert torch.equal(one.linear.weight, two.linear.weight)
    for key, value in optimizer_tensors(optimizer, one).items():
        assert torch.equal(value, optimizer_tensors(copied, two)[key]), key


@pytest.mark.parametrize(
    "tensors", [{"other/exp_avg": torch.zeros(3)}, {"linear.bias/exp_avg": torch.zeros(2)}]
)
def test_optimizer_state_of_another_model_is_refused(tensors: dict[str, Tensor]) -> None:
    model = Sum()
    optimizer = build_optimizer(OptimConfig(), model, "float32")
    with pytest.raises(StorageError, match=next(iter(tensors)).replace(".", r"\.")):
        load_optimizer_tensors(optimizer, model, tensors)


def test_tied_and_frozen_parameters_are_trained_once_or_not_at_all() -> None:
    model = Sum()
    found = list(trainable(model).values())
    assert len(found) == 2
    assert found[0] is model.linear.weight
    assert found[1] is model.linear.bias


class Parts(nn.Module):
    """A head, registered first, and a trunk; the head shares a matrix with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 5)
        self.layers = nn.Linear(3, 3)
        self.embedding = nn.Embedding(5, 3)
        self.embedding.weight = self.head.weight

    def loss(self, batch: Tensor) -> StepLoss:  # (rows, 3)
        objective = self.head(self.layers(batch)).square().sum()
        return StepLoss(objective, objective.detach(), len(batch))


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_the_trunk_has_a_learning_rate_of_its_own(name: str) -> None:
    """One update of SGD is the gradient times the rate; optimisers of two groups continue exactly."""
    optim = OptimConfig(name=name, lr=0.5, trunk_lr_ratio=0.25, clip_norm=0)
    train = TrainConfig(max_steps=1)
    one, two = Parts(), Parts()
    first = build_optimizer(optim, one, "float32")
    batch = torch.randn(4, 3)
    for number in range(2):
        before = {key: value.detach().clone() for key, value in one.named_parameters()}
        update = Updater(one, one.loss, first, optim, train)
        sums = update.gradients([batch])
        gradients = {key: value.grad.clone() for key, value in one.named_parameters()}
        update.apply(sums, 0.5)
        update.clear()
        if name == "sgd":
            for key, value in one.named_parameters():
                rate = 0.125 if key.startswith("layers") else 0.5
                torch.testing.assert_close(value, before[key] - rate * gradients[key])
        if not number:
            two.load_state_dict(one.state_dict())
            second = build_optimizer(optim, two, "float32")
            load_optimizer_tensors(second, two, optimizer_tensors(first, one))
    again = Updater(two, two.loss, second, optim, train)
    again.apply(again.gradients([batch]), 0.5)
    assert all(torch.equal(value, two.state_dict()[key]) for key, value in one.state_dict().items())


def test_a_frozen_trunk_stays_and_costs_no_gradients() -> None:
    model, optim = Parts(), OptimConfig()
    whole = training_memory(model, optim, 0)
    freeze(TrainConfig(freeze="trunk"), model)
    assert set(trainable(model)) == {"head.weight", "head.bias"}
    frozen = training_memory(model, optim, 0)
    assert frozen["weights"] == whole["weights"]
    assert frozen["gradients"] == 4 * (15 + 5) < whole["gradients"]
    assert frozen["optimizer"] == 2 * frozen["gradients"]


@given(st.integers(0, 12), st.integers(1, 5))
def test_batches_know_their_last_group(length: int, count: int) -> None:
    batches = Batches(iter(range(length)))
    taken: list[int] = []
    while True:
        group = batches.take(count)
        assert len(group) == min(count, length - len(taken))
        taken += group
        assert batches.ended == (len(taken) == length)
        if batches.ended:
            break
    assert taken == list(range(length))


def test_every_generator_is_restored() -> None:
    import random

    import numpy as np

    def draw() -> list[float]:
        gauss = [random.gauss(0, 1), float(np.random.normal()), torch.randn(()).item()]
        return [*gauss, random.random(), float(np.random.random()), torch.rand(()).item()]

    seed_everything(2**40 + 3)
    first = draw()  # leaves half a pair of Gaussian numbers behind in python's and NumPy's generators
    state = rng_tensors()
    expected = [draw(), draw()]
    load_rng(state)
    assert [draw(), draw()] == expected
    seed_everything(2**40 + 3)
    assert draw() == first
    assert draw() == expected[0]


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert configure_device(TrainConfig(threads=2)).type == "cpu"
    assert torch.get_num_threads() == 2
    with pytest.raises(ConfigError, match=r"train\.device"):
        configure_device(TrainConfig(device="cuda"))
    assert chosen_device(TrainConfig(device="cuda")).type == "cuda"
