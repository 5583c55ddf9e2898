"""The elementwise work of the mixture loss on the rows of a logit matrix: compiled, or in tensor operations.

Both leave in place of the logits z (R, V) of a chunk the shares that the gradient needs,

    g(z_v) / g(m) · d log g / dz at z_v,   m = max_v z_v,

and return log g(m) and the totals Σ_v g(z_v) / g(m). They differ in rounding only.
"""

import ctypes
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from lm.kernels import native
from lm.links import EXP, SIGSOFTMAX, Link


class Rows(ABC):
    """Works on chunks of at most as many rows as ``like`` (R, V) has, in its precision."""

    @abstractmethod
    def shares_(self, logits: Tensor, bias: Tensor | None, shift: Tensor | None) -> tuple[Tensor, Tensor]:
        """Shares in place of ``logits`` (r, V), once ``bias`` (V,) is added; log g(m) and totals, (r, 1)."""

    @abstractmethod
    def column_sums(self, shares: Tensor, factors: Tensor) -> Tensor:
        """Σ_r factors_r · shares_rv, (V,), for the shares of the last :meth:`shares_` and factors (r, 1)."""


def rows_for(link: Link, like: Tensor) -> Rows:
    """The fastest :class:`Rows` for a link and a buffer ``like`` the logits of the largest chunk."""
    compiled = link in (EXP, SIGSOFTMAX) and like.device.type == "cpu" and like.dtype != torch.float64
    library = native.library() if compiled else None
    return EagerRows(link, like) if library is None else CompiledRows(library, link, like)


class EagerRows(Rows):
    """In tensor operations, for every link, precision and device."""

    def __init__(self, link: Link, like: Tensor) -> None:
        self.link = link
        precision = torch.float64 if like.dtype == torch.float64 else torch.float32
        self.exact = like.dtype == precision
        self.buffers = like.new_empty((link.buffers - self.exact, *like.shape), dtype=precision)

    def shares_(self, logits: Tensor, bias: Tensor | None, shift: Tensor | None) -> tuple[Tensor, Tensor]:
        buffers = self.buffers[:, : logits.shape[0]]
        scores, spares = (logits, buffers) if self.exact else (buffers[0].copy_(logits), buffers[1:])
        if bias is not None:
            scores.add_(bias)
        top = self.link.log(scores.amax(1, keepdim=True), shift)
        share = self.link.log_(scores, shift, spares).sub_(top).exp_()
        total = share.sum(1, keepdim=True)
        self.link.times_slope_(share, spares)
        if not self.exact:
            logits.copy_(share)
        return top, total

    def column_sums(self, shares: Tensor, factors: Tensor) -> Tensor:
        exact = shares if self.exact else self.buffers[0, : shares.shape[0]]
        return torch.mv(exact.t(), factors[:, 0])


class CompiledRows(Rows):
    """By ``rows.cpp``, for exp and sigsoftmax in float32 and bfloat16 on a CPU."""

    def __init__(self, library: ctypes.CDLL, link: Link, like: Tensor) -> None:
        suffix = {torch.float32: "float32", torch.bfloat16: "bfloat16"}[like.dtype]
        self.link = link
        self._rows, self._columns = library[f"rows_{suffix}"], library[f"columns_{suffix}"]
        self._no_bias = like.new_zeros(like.shape[1], dtype=torch.float32)

    def shares_(self, logits: Tensor, bias: Tensor | None, shift: Tensor | None) -> tuple[Tensor, Tensor]:
        peak, total = (self._no_bias.new_empty(logits.shape[0], 1) for _ in range(2))
        self._rows(
            ctypes.c_int(self.link is SIGSOFTMAX),
            _pointer(logits),
            _pointer(self._no_bias if bias is None else bias),
            ctypes.c_float(0.0 if shift is None else float(shift)),
            *map(ctypes.c_long, logits.shape),
            _pointer(peak),
            _pointer(total),
            ctypes.c_int(torch.get_num_threads()),
        )
        return self.link.log(peak, shift), total

    def column_sums(self, shares: Tensor, factors: Tensor) -> Tensor:
        sums = self._no_bias.new_empty(shares.shape[1])
        self._columns(
            _pointer(shares),
            _pointer(factors),
            *map(ctypes.c_long, shares.shape),
            _pointer(sums),
            ctypes.c_int(torch.get_num_threads()),
        )
        return sums


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    if not tensor.is_contiguous():
        raise ValueError(f"a kernel needs contiguous memory, found strides {tensor.stride()}")
    return ctypes.c_void_p(tensor.data_ptr())
