"""Optimisers, learning-rate schedules and weight averaging.

The learning rate is a function of the step and of the validations seen so far, never of hidden state in
a scheduler object, so it resumes exactly. Optimiser state travels as named flat tensors, without pickle.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lm.errors import StorageError
from lm.schema import OptimConfig
from lm.storage import JSON


def build_optimizer(config: OptimConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of every trainable parameter of ``model`` (tied parameters once), in fused form."""
    parameters = list(trainable(model).values())
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters, config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=True
        )
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    decay = config.weight_decay
    return kind(parameters, config.lr, betas=config.betas, eps=config.eps, weight_decay=decay, fused=True)


def numbers_per_parameter(config: OptimConfig) -> int:
    """How many numbers a checkpoint holds for each parameter: itself, the optimiser's and the average."""
    own = (1 if config.momentum else 0) if config.name == "sgd" else 2
    return 1 + own + (config.average != "none")


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters by name; a tied parameter appears once, under its first name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state as ``"parameter name/quantity"`` → tensor; empty before the first update."""
    return {
        f"{name}/{quantity}": value
        for name, parameter in trainable(model).items()
        for quantity, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Puts back what :func:`optimizer_tensors` took; StorageError where a name or shape is not ours."""
    parameters = trainable(model)
    index = {name: number for number, name in enumerate(parameters)}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, quantity = key.rpartition("/")
        if name not in index or (value.dim() and value.shape != parameters[name].shape):
            raise StorageError(f"optimiser state {key!r} does not fit the model; train in a new --run folder")
        state.setdefault(index[name], {})[quantity] = value.clone()
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


@dataclass
class Plateau:
    """What the plateau schedule remembers of the validations."""

    best: float | None = None  # lowest nll
    stale: int = 0  # validations since, or since the last drop
    factor: float = 1.0  # on the learning rate


class Schedule:
    """The learning rate: linear warm-up, then constant, cosine, or lowered where validation stalls."""

    def __init__(self, config: OptimConfig) -> None:
        self._config = config
        self._plateau = Plateau()

    def lr(self, step: int) -> float:
        """The rate of the update that follows ``step`` finished ones."""
        config = self._config
        warmup = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
        if config.schedule == "cosine":
            span = config.decay_steps - config.warmup_steps
            done = min(1.0, max(0.0, (step - config.warmup_steps) / span))
            share = 0.5 * (1.0 + math.cos(math.pi * done))
            return config.lr * warmup * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * share)
        return config.lr * warmup * self._plateau.factor

    def observe(self, nll: float) -> None:
        """Takes note of a validation; a NaN is a stale one. Only the plateau schedule acts on it."""
        config, plateau = self._config, self._plateau
        if config.schedule != "plateau":
            return
        if math.isfinite(nll) and (plateau.best is None or nll < plateau.best):
            plateau.best, plateau.stale = nll, 0
            return
        plateau.stale += 1
        if plateau.stale > config.plateau_patience:
            plateau.factor = max(config.min_lr_ratio, plateau.factor * config.plateau_factor)
            plateau.stale = 0

    def state(self) -> dict[str, JSON]:
        return asdict(self._plateau)

    def load(self, state: Mapping[str, Any]) -> None:
        """Puts back what :meth:`state` gave; raises TypeError where that is not what it is."""
        self._plateau = Plateau(**state)


class Averager:
    """The average of the weights since ``average_start``: exponential (EMA), or uniform as in averaged SGD.

    The exponential average starts at the first averaged iterate; the uniform one is the mean of the iterates
    ``average_start + 1 … t`` (Polyak and Juditsky, 1992). Buffers are not averaged.
    """

    def __init__(self, config: OptimConfig, model: nn.Module) -> None:
        self._config = config
        self._model = model
        self._average: dict[str, Tensor] = {}
        self.count = 0  # iterates averaged so far

    def update(self, step: int) -> None:
        """Takes in the weights after update number ``step`` (the first is 1)."""
        if self._config.average == "none" or step <= self._config.average_start:
            return
        parameters = trainable(self._model)
        self.count += 1
        if self.count == 1:
            self._average = {name: parameter.detach().clone() for name, parameter in parameters.items()}
            return
        share = 1.0 / self.count if self._config.average == "uniform" else 1.0 - self._config.ema_decay
        weights: list[Tensor] = [parameter.detach() for parameter in parameters.values()]
        torch._foreach_lerp_(list(self._average.values()), weights, share)

    @contextmanager
    def swap(self) -> Iterator[None]:
        """Inside, the model holds the averages (its own weights before averaging begins); bit-exact after."""
        trained = trainable(self._model).values() if self.count else ()
        parameters: list[Tensor] = [parameter.detach() for parameter in trained]
        kept = [parameter.clone() for parameter in parameters]
        _copy(parameters, list(self._average.values()))
        try:
            yield
        finally:
            _copy(parameters, kept)

    def tensors(self) -> dict[str, Tensor]:
        """The model's state_dict with averages in place of weights; empty before averaging begins."""
        if not self.count:
            return {}
        averages = {id(weight): self._average[name] for name, weight in trainable(self._model).items()}
        own = self._model.state_dict(keep_vars=True)
        return {name: averages.get(id(tensor), tensor.detach()) for name, tensor in own.items()}

    def load(self, tensors: Mapping[str, Tensor], count: int) -> None:
        """Puts back :meth:`tensors` and :attr:`count`; StorageError where they do not fit the model."""
        parameters = trainable(self._model)
        self.count = count
        self._average = {}
        if not count:
            return
        for name, parameter in parameters.items():
            if name not in tensors or tensors[name].shape != parameter.shape:
                raise StorageError(
                    f"the saved averages do not fit the model at {name!r}; was config.json edited?"
                )
            self._average[name] = tensors[name].to(parameter, copy=True)


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
