"""Optimisers: groups of parameters, and state as named tensors, without pickle."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lm.engine.config import OptimConfig, TrainConfig
from lm.engine.muon import Muon, hidden_matrices
from lm.engine.optimizers import Adam, AdamW, Sgd
from lm.errors import StorageError

_HEAD = "head."  # beginning of the names of a head's parameters


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
        return Sgd(
            parameters, config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=True
        )
    kind = Adam if config.name == "adam" else AdamW
    decay = config.weight_decay
    return kind(parameters, config.lr, betas=config.betas, eps=config.eps, weight_decay=decay, fused=True)


def _groups(config: OptimConfig, model: nn.Module) -> list[dict[str, Any]]:
    """The trainable parameters by factor on the rate, weight decay or none, and Muon's number of blocks."""
    head = head_parameters(model)
    hidden = hidden_matrices(model) if config.name == "muon" else {}
    groups: dict[tuple[float, bool, int], list[nn.Parameter]] = {}
    for name, parameter in trainable(model).items():
        ratio = 1.0 if id(parameter) in head else config.trunk_lr_ratio
        decays = config.weight_decay_of == "all" or parameter.dim() > 1
        groups.setdefault((ratio, decays, hidden.get(name, 0)), []).append(parameter)
    return [
        {"params": some, "lr_ratio": ratio, "blocks": blocks} | ({} if decays else {"weight_decay": 0.0})
        for (ratio, decays, blocks), some in groups.items()
    ]


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
    """Numbers that the optimiser keeps for each parameter; Muon keeps only one for hidden matrices."""
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
