"""Optimisers, learning-rate schedules and weight averaging.

The learning rate is a function of the step and of the validations so far. No scheduler object holds hidden
state, so the rate resumes exactly. Optimiser state is saved as named tensors, without pickle.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lm.disk.storage import JSON
from lm.engine.config import OptimConfig, TrainConfig
from lm.engine.muon import Muon, hidden_matrices
from lm.errors import StorageError

_HEAD = "head."  # beginning of the names of a head's parameters
ONE_CYCLE_START = 1 / 25  # of the peak (Smith and Topin 2018, as in torch's OneCycleLR)


def build_optimizer(config: OptimConfig, model: nn.Module, precision: str) -> torch.optim.Optimizer:
    """An optimiser of every trainable parameter of ``model``; tied parameters count once.

    Each group of parameters has its factor on the learning rate as ``lr_ratio``. ``precision``,
    a value of ``train.precision``, is that of Muon's iteration.
    """
    parameters = _groups(config, model)
    if config.name == "muon":
        decays = (config.weight_decay, config.muon_momentum)
        bfloat16 = precision == "bfloat16"
        return Muon(parameters, config.lr, config.betas, config.eps, *decays, bfloat16=bfloat16)
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters, config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=True
        )
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    decay = config.weight_decay
    return kind(parameters, config.lr, betas=config.betas, eps=config.eps, weight_decay=decay, fused=True)


def _groups(config: OptimConfig, model: nn.Module) -> list[dict[str, Any]]:
    """The trainable parameters by their factor on the rate and, for Muon, their number of matrix blocks."""
    head = head_parameters(model)
    hidden = hidden_matrices(model) if config.name == "muon" else {}
    groups: dict[tuple[float, int], list[nn.Parameter]] = {}
    for name, parameter in trainable(model).items():
        ratio = 1.0 if id(parameter) in head else config.trunk_lr_ratio
        groups.setdefault((ratio, hidden.get(name, 0)), []).append(parameter)
    return [{"params": some, "lr_ratio": ratio, "blocks": blocks} for (ratio, blocks), some in groups.items()]


def head_parameters(model: nn.Module) -> set[int]:
    """``id`` of every parameter of the head, also of one that it shares with the embedding."""
    named = model.named_parameters(remove_duplicate=False)
    return {id(parameter) for name, parameter in named if name.startswith(_HEAD)}


def freeze(config: TrainConfig, model: nn.Module) -> None:
    """Exclude the parameters of ``train.freeze`` from training."""
    if config.freeze == "trunk":
        head = head_parameters(model)
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in head)


def trained_bytes(model: nn.Module) -> int:
    """Size of all trainable parameters."""
    return sum(parameter.numel() * parameter.element_size() for parameter in trainable(model).values())


def commit_bytes(config: OptimConfig, model: nn.Module) -> int:
    """Approximate size of a commit: weights and averages, tied ones twice, and the optimiser's state."""
    stored = sum(tensor.nbytes for tensor in model.state_dict().values())
    averages = int(config.average != "none")
    return int((1 + averages) * stored + optimizer_numbers(config) * trained_bytes(model))


def optimizer_numbers(config: OptimConfig) -> int:
    """Numbers that the optimiser keeps for each parameter."""
    return int(config.momentum > 0) if config.name == "sgd" else 2


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
    """Restore the result of :func:`optimizer_tensors`; StorageError if a name or shape does not fit."""
    parameters = trainable(model)
    grouped = (parameter for group in optimizer.param_groups for parameter in group["params"])
    numbers = {id(parameter): number for number, parameter in enumerate(grouped)}
    index = {name: numbers[id(parameter)] for name, parameter in parameters.items()}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, quantity = key.rpartition("/")
        if name not in index or (value.dim() and value.shape != parameters[name].shape):
            raise StorageError(f"optimiser state {key!r} does not fit the model; train in a new --run folder")
        state.setdefault(index[name], {})[quantity] = value.clone()
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


@dataclass
class Plateau:
    """State of the plateau schedule."""

    stale: int = 0  # validations since the last better one, or since the last drop
    factor: float = 1.0  # on the learning rate


def nonmonotonic(history: Sequence[float], window: int) -> bool:
    """True if the latest validation is worse than the best one that is older than the ``window`` before it.

    This condition starts averaging in NT-ASGD and ends finetuning (Merity et al. 2018, Algorithm 1). As in
    their code, it needs at least ``window`` + 1 earlier validations.
    """
    settled = history[: max(0, len(history) - 1 - window)]
    return bool(settled) and history[-1] > min(settled)


def stale(history: Sequence[float]) -> int:
    """Number of validations since the best one; 0 without any validation."""
    return len(history) - 1 - history.index(min(history)) if history else 0


def _cosine(done: float) -> float:
    """Half a cosine wave from 1 at 0 to 0 at 1."""
    return 0.5 * (1.0 + math.cos(math.pi * done))


class Schedule:
    """Learning-rate schedule: warm-up, then constant, cosine, or lowered when validation stalls."""

    def __init__(self, config: OptimConfig) -> None:
        self._config = config
        self._plateau = Plateau()

    def lr(self, step: int) -> float:
        """The rate of the update that follows ``step`` finished ones."""
        config = self._config
        warmup = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
        if config.schedule == "one_cycle" and warmup < 1.0:
            return config.lr * (1.0 - (1.0 - ONE_CYCLE_START) * _cosine(warmup))
        if config.schedule in ("cosine", "one_cycle"):
            span = config.decay_steps - config.warmup_steps
            share = _cosine(min(1.0, max(0.0, (step - config.warmup_steps) / span)))
            return config.lr * warmup * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * share)
        return config.lr * warmup * self._plateau.factor

    def observe(self, better: bool) -> None:
        """Record if a validation was better. Only the plateau schedule uses it."""
        config, plateau = self._config, self._plateau
        if config.schedule != "plateau":
            return
        plateau.stale = 0 if better else plateau.stale + 1
        if plateau.stale > config.plateau_patience:
            plateau.factor = max(config.min_lr_ratio, plateau.factor * config.plateau_factor)
            plateau.stale = 0

    def state(self) -> dict[str, JSON]:
        return asdict(self._plateau)

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state`; raises TypeError for other keys."""
        self._plateau = Plateau(**state)


class Averager:
    """Average of the weights since ``average_start``: exponential (EMA), or uniform as in averaged SGD.

    Both average the iterates s = ``average_start + 1 … t``. The coefficients of the exponential average are
    proportional to d^(t − s). They sum to 1 by the bias correction of Kingma and Ba (2015, § 3). The first
    iterate of a short training therefore does not dominate. The uniform average is the mean (Polyak and
    Juditsky 1992).

    Averaging may also start at a validation. With ``average_trigger``, the first validation that triggers
    NT-ASGD starts it (Merity et al. 2018). With ``average_patience``, it starts after as many validations
    without a new best, and at the latest at ``average_start`` (Melis et al. 2020).

    ``skip_first`` omits the first iterate from the uniform mean, as ``torch.optim.ASGD`` does. Buffers are
    not averaged.
    """

    def __init__(self, config: OptimConfig, model: nn.Module, *, skip_first: bool = False) -> None:
        self._config = config
        self._model = model
        self._skipped = int(skip_first)
        self._average: dict[str, Tensor] = {}
        self.count = 0  # iterates since averaging began
        waits = config.average_trigger or config.average_patience
        self.start: int | None = None if waits else config.average_start

    def observe(self, history: Sequence[float], step: int) -> bool:
        """Record all validations so far, the one at ``step`` last; True if it starts averaging."""
        config = self._config
        if self.start is not None:
            return False
        if config.average_patience:
            stalls = stale(history) >= config.average_patience or 0 < config.average_start <= step
        else:
            stalls = nonmonotonic(history, config.average_trigger)
        if stalls:
            self.start = step
        return stalls

    def takes(self, step: int) -> bool:
        """True if the weights after update number ``step`` (from 1) enter the average."""
        return self._config.average != "none" and self.start is not None and step > self.start

    def update(self, step: int) -> None:
        """Add the weights after update number ``step`` to the average."""
        if not self.takes(step):
            return
        parameters = trainable(self._model)
        self.count += 1
        if self.count == 1:
            self._average = {name: parameter.detach().clone() for name, parameter in parameters.items()}
            return
        if self._config.average == "uniform":
            share = 1.0 / max(1, self.count - self._skipped)
        else:
            share = (1.0 - self._config.ema_decay) / (1.0 - self._config.ema_decay**self.count)
        weights: list[Tensor] = [parameter.detach() for parameter in parameters.values()]
        torch._foreach_lerp_(list(self._average.values()), weights, share)

    @contextmanager
    def swap(self) -> Iterator[None]:
        """Context in which the model holds the averages; before averaging begins, nothing changes."""
        trained = trainable(self._model).values() if self.count else ()
        parameters: list[Tensor] = [parameter.detach() for parameter in trained]
        kept = [parameter.clone() for parameter in parameters]
        _copy(parameters, list(self._average.values()))
        try:
            yield
        finally:
            _copy(parameters, kept)

    def tensors(self) -> dict[str, Tensor]:
        """The model's state_dict with averages instead of weights; empty before averaging begins."""
        if not self.count:
            return {}
        averages = {id(weight): self._average[name] for name, weight in trainable(self._model).items()}
        own = self._model.state_dict(keep_vars=True)
        return {name: averages.get(id(tensor), tensor.detach()) for name, tensor in own.items()}

    def load(self, tensors: Mapping[str, Tensor], count: int, start: int | None) -> None:
        """Restore :meth:`tensors`, count and start; StorageError if they do not fit the model."""
        parameters = trainable(self._model)
        self.count, self.start = count, start
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
