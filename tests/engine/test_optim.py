"""Optimisers: accumulated batches, state as tensors, groups of parameters, devices and generators."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lm.engine.config import OptimConfig, TrainConfig
from lm.engine.device import chosen_device, configure_device
from lm.engine.memory import training_memory
from lm.engine.optim import (
    build_optimizer,
    freeze,
    load_optimizer_tensors,
    optimizer_numbers,
    optimizer_tensors,
    trainable,
)
from lm.engine.rng import load_rng, rng_tensors, seed_everything
from lm.engine.update import Batches, StepLoss, Updater
from lm.errors import ConfigError, StorageError


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


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "muon"])
@pytest.mark.parametrize("of", ["all", "matrices"])
def test_weight_decay_shrinks_what_it_is_of(name: str, of: str) -> None:
    config = OptimConfig.model_validate({"name": name, "lr": 0.1, "weight_decay": 0.1, "weight_decay_of": of})
    model = Sum()
    before = {name: parameter.detach().clone() for name, parameter in trainable(model).items()}
    optimizer = build_optimizer(config, model, "float32")
    for parameter in trainable(model).values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    shrunk = {name for name, parameter in trainable(model).items() if parameter.norm() < before[name].norm()}
    assert shrunk == ({"tied", "linear.bias"} if of == "all" else {"tied"})


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_updates_have_the_bits_of_torch(name: str) -> None:
    settings: dict[str, Any] = {"momentum": 0.9} if name == "sgd" else {"betas": (0.9, 0.999)}
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
    ours, theirs = Sum(), Sum()
    theirs.load_state_dict(ours.state_dict())
    config = OptimConfig.model_validate(settings | {"name": name, "lr": 0.1, "weight_decay": 0.1})
    optimizers = (
        build_optimizer(config, ours, "float32"),
        kind(trainable(theirs).values(), lr=0.1, weight_decay=0.1, fused=True, **settings),
    )
    for batch in torch.randn(3, 5, 4, dtype=torch.float64):
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            model.loss(batch).objective.backward()
            optimizer.step()
    assert torch.equal(ours.linear.weight, theirs.linear.weight)


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
