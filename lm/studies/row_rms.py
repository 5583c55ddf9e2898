"""RMSProp with one mean square a row, whose updates have the rank of the gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lm.engine.optimizers import EagerOptimizer


class RowRms(EagerOptimizer):
    """RMSProp for matrices, with the mean square of a row instead of the square of each entry.

    An update is D · G, with a diagonal matrix D and the gradient G, so that it has the rank of G. Adam
    divides entry by entry and averages gradients, which gives an update of higher rank.
    """

    def __init__(self, matrices: Sequence[Tensor], decay: float, eps: float) -> None:
        super().__init__(matrices, {"lr": 0.0, "decay": decay, "eps": eps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix by its gradient, with the rate ``lr`` of its group."""
        for group in self.param_groups:
            for matrix in group["params"]:
                self._update(matrix, group["lr"], group["decay"], group["eps"])

    def _update(self, matrix: Tensor, lr: float, decay: float, eps: float) -> None:
        gradient, state = matrix.grad, self.state[matrix]
        assert gradient is not None
        if not state:
            state |= {"step": 0, "square": torch.zeros_like(matrix[:, :1])}
        state["step"] += 1
        state["square"].lerp_(gradient.square().mean(1, keepdim=True), 1 - decay)
        square = state["square"] / (1 - decay ** state["step"])
        matrix.addcdiv_(gradient, square.sqrt() + eps, value=-lr)
