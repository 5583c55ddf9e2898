"""Numbers that are at least float32, and products that may be less."""

import torch
import torch.nn.functional as F
from torch import Tensor


def precise(tensor: Tensor) -> Tensor:
    """The tensor in float32, or as it is in float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def product(states: Tensor, matrix: Tensor, bf16: bool = False, operand: Tensor | None = None) -> Tensor:
    """states (..., E) times the transpose of matrix (V, E), in the type of ``states``.

    Where ``operand`` is given, the matrix (E, V) as it was rounded before, that is taken, without gradients.
    """
    if operand is not None:
        return (states.to(operand.dtype) @ operand).to(states.dtype)
    if not bf16:
        return F.linear(states, matrix)
    return F.linear(states.bfloat16(), matrix.bfloat16()).to(states.dtype)
