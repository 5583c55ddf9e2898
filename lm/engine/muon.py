"""Muon (Jordan et al. 2024): momentum whose matrices are made orthogonal, beside AdamW for other parameters.

A hidden matrix maps hidden states to hidden states. Embeddings, output matrices and vectors are not hidden
matrices. A parameter that holds several matrices below each other, as the gates of a recurrent layer, is
updated block by block. Matrices of pretrained networks are updated whole, also where several lie side by
side, as those of queries, keys and values in GPT-2.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lm.engine.optimizers import AdamW

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration, those of the authors
_ITERATIONS = 5
_LEAST_NORM = 1e-7
_RMS = 0.2  # of an AdamW update divided by its rate, in practice (Liu et al. 2025, § 2.2)


def hidden_matrices(model: nn.Module) -> dict[str, int]:
    """Number of blocks of each hidden matrix, by its first name in the model."""
    blocks: dict[int, int] = {}
    for part in model.modules():
        own = dict(part.named_parameters())
        blocks |= {id(own[name]): count for name, count in _blocks_of(part).items() if name in own}
    return {
        name: blocks.get(id(parameter), 1)
        for name, parameter in model.named_parameters()
        if parameter.dim() == 2 and min(parameter.shape) > 1 and blocks.get(id(parameter), 1)
    }


def _blocks_of(part: nn.Module) -> Mapping[str, int]:
    """Number of equal blocks of rows by name of a parameter; 0 for one that is not a hidden matrix."""
    if own := getattr(part, "matrix_blocks", None):
        blocks: dict[str, int] = own()
        return blocks
    if isinstance(part, nn.Embedding):
        return {"weight": 0}
    if isinstance(part, nn.RNNBase):
        named = part.named_parameters(recurse=False)
        return {name: len(one) // part.hidden_size for name, one in named if one.dim() == 2}
    return {}


class Muon(AdamW):
    """AdamW whose groups with ``blocks`` above 0 are updated by Muon with Nesterov momentum.

    The learning rate of a matrix is multiplied by 0.2 · max(rows, columns)^½, so that its update has the
    root mean square of one of AdamW (Liu et al. 2025). Weight decay is decoupled.

    Args:
        groups: of parameters, each with its number of ``blocks``; 0 for AdamW.
        lr, betas, eps, weight_decay: see ``torch.optim.AdamW``.
        momentum: decay rate of Muon's momentum.
        bfloat16: make matrices orthogonal in bfloat16, as the authors do. Momentum and weights stay as they
            are.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        momentum: float,
        *,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(groups, lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)
        self._momentum = momentum
        self._dtype = torch.bfloat16 if bfloat16 else None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["blocks"]]
        try:
            loss = super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            for parameter in group["params"] if group["blocks"] else ():
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: Mapping[str, Any]) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if not state:
            state["step"] = torch.zeros(())  # AdamW expects it in every state that it loads
            state["momentum"] = torch.zeros_like(gradient)
        state["step"] += 1
        momentum = state["momentum"].lerp_(gradient, 1 - self._momentum)
        blocks = gradient.lerp(momentum, self._momentum).unflatten(0, (group["blocks"], -1))
        update = orthogonalized(blocks, self._dtype)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        rate = group["lr"] * _RMS * math.sqrt(max(update.shape[1:]))
        parameter.add_(update.flatten(0, 1), alpha=-rate)


def orthogonalized(matrices: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Matrices (N, R, C) with their own singular vectors, and singular values near 1, computed in ``dtype``.

    The coefficients of the iteration raise small singular values fast and converge nowhere. Values end
    between 0.68 and 1.21 if they begin above 0.003 of the Frobenius norm. Zeros stay zeros.
    """
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = (x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=_LEAST_NORM)).to(dtype or x.dtype)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
