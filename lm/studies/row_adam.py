"""Adam with one second moment a row, whose updates have the row space of the gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor


class RowAdam(torch.optim.Optimizer):
    """Adam for matrices, with the mean square of a row instead of the square of each entry.

    An update is D · M, with a diagonal matrix D and the moving average M of the gradients. So its rank is at
    most that of M. Adam itself divides entry by entry, which gives an update full rank.
    """

    def __init__(self, matrices: Sequence[Tensor], betas: tuple[float, float], eps: float) -> None:
        super().__init__(matrices, {"lr": 0.0, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix by its gradient, with the rate ``lr`` of its group."""
        for group in self.param_groups:
            for matrix in group["params"]:
                self._update(matrix, group["lr"], group["betas"], group["eps"])

    def _update(self, matrix: Tensor, lr: float, betas: tuple[float, float], eps: float) -> None:
        gradient, state = matrix.grad, self.state[matrix]
        assert gradient is not None
        if not state:
            state |= {"step": 0, "mean": torch.zeros_like(matrix), "square": torch.zeros_like(matrix[:, :1])}
        state["step"] += 1
        state["mean"].lerp_(gradient, 1 - betas[0])
        state["square"].lerp_(gradient.square().mean(1, keepdim=True), 1 - betas[1])
        mean = state["mean"] / (1 - betas[0] ** state["step"])
        square = state["square"] / (1 - betas[1] ** state["step"])
        matrix.addcdiv_(mean, square.sqrt() + eps, value=-lr)
