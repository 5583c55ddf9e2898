"""Precision: casts to at least float32, matrix products in bfloat16, and sums that are reproducible."""

import torch
import torch.nn.functional as F
from torch import Tensor


def precise(tensor: Tensor) -> Tensor:
    """Cast a tensor to float32; float64 stays."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def cumulative(values: Tensor, dim: int) -> Tensor:
    """Cumulative sums, on the CPU because those of CUDA are not reproducible."""
    return values.cpu().cumsum(dim).to(values.device)


def product(states: Tensor, matrix: Tensor, bf16: bool = False, operand: Tensor | None = None) -> Tensor:
    """states (..., E) times the transpose of matrix (V, E), in the dtype of ``states``.

    If ``operand``, the matrix rounded before and transposed (E, V), is given, it replaces ``matrix``, without
    gradients.
    """
    if operand is not None:
        return (states.to(operand.dtype) @ operand).to(states.dtype)
    if not bf16:
        return F.linear(states, matrix)
    return F.linear(states.bfloat16(), matrix.bfloat16()).to(states.dtype)
