"""What the rows of a logit matrix come to, for a link g: compiled, or in tensor operations.

The two differ in rounding only. R rows · N tokens · K components · V words.
"""

import ctypes
from abc import ABC, abstractmethod
from functools import cached_property

import torch
from torch import Tensor

from lm.kernels import native
from lm.links import EXP, SIGSOFTMAX, Link

LOWEST = -1e38  # a logit that leaves no share; finite, for it may be a row's only one


class Rows(ABC):
    """Works on chunks of at most as many rows as ``like`` (R, V) has, in its precision."""

    @abstractmethod
    def shares_(
        self, logits: Tensor, words: Tensor, bias: Tensor | None, shift: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """What the loss and its gradient need, in place of ``logits`` z (r, V), once ``bias`` (V,) is added.

        With m the largest z_v but for each row's word out of ``words`` (r,), left in place are the shares
        g(z_v) / g(m) · d log g / dz at z_v, and 0 or 1e-38 at that word; returned are log g(m) and the totals
        Σ_v g(z_v) / g(m) over the other words, (r, 1).
        """

    @abstractmethod
    def column_sums(self, shares: Tensor, factors: Tensor) -> Tensor:
        """Σ_r factors_r · shares_rv, (V,), for shares (r, V) and factors (r, 1)."""

    @abstractmethod
    def log_totals(self, logits: Tensor, bias: Tensor | None, shift: Tensor | None) -> Tensor:
        """log Σ_v g(z_v), (r, 1); ``logits`` stay."""

    @abstractmethod
    def mixed(self, logits: Tensor, bias: Tensor | None, shift: Tensor | None, offsets: Tensor) -> Tensor:
        """log Σ_k exp(log g(z_nkv) + o_nk), (N, V), of logits (N·K, V) and ``offsets`` o (N, K)."""


def rows_for(link: Link, like: Tensor) -> Rows:
    """The fastest :class:`Rows` for a link and a buffer ``like`` the logits of the largest chunk."""
    known = link in (EXP, SIGSOFTMAX) and like.dtype in (torch.float32, torch.bfloat16)
    compiled = known and like.device.type == "cpu"
    library = native.library() if compiled else None
    return EagerRows(link, like) if library is None else CompiledRows(library, link, like)


class EagerRows(Rows):
    """In tensor operations, for every link, precision and device."""

    def __init__(self, link: Link, like: Tensor) -> None:
        self.link = link
        self.precision = torch.float64 if like.dtype == torch.float64 else torch.float32
        self.exact = like.dtype == self.precision
        self._like = like

    @cached_property
    def buffers(self) -> Tensor:
        """What :meth:`shares_` needs beside the logits, (·, R, V)."""
        count = self.link.buffers - self.exact
        return self._like.new_empty((count, *self._like.shape), dtype=self.precision)

    def shares_(
        self, logits: Tensor, words: Tensor, bias: Tensor | None, shift: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        buffers = self.buffers[:, : logits.shape[0]]
        scores, spares = (logits, buffers) if self.exact else (buffers[0].copy_(logits), buffers[1:])
        if bias is not None:
            scores.add_(bias)
        _put(scores, words, LOWEST)
        top = self.link.log(scores.amax(1, keepdim=True), shift)
        share = self.link.log_(scores, shift, spares).sub_(top).exp_()
        _put(share, words, 0)  # not every g vanishes there
        total = share.sum(1, keepdim=True)
        self.link.times_slope_(share, spares)
        if not self.exact:
            logits.copy_(share)
        return top, total

    def column_sums(self, shares: Tensor, factors: Tensor) -> Tensor:
        exact = shares if self.exact else self.buffers[0, : shares.shape[0]].copy_(shares)
        return torch.mv(exact.t(), factors[:, 0])

    def log_totals(self, logits: Tensor, bias: Tensor | None, shift: Tensor | None) -> Tensor:
        return self._log(logits, bias, shift).logsumexp(1, keepdim=True)

    def mixed(self, logits: Tensor, bias: Tensor | None, shift: Tensor | None, offsets: Tensor) -> Tensor:
        scores: Tensor = self._log(logits, bias, shift).unflatten(0, offsets.shape)  # (N, K, V)
        scores = scores.add_(offsets[..., None])
        return scores[:, 0] if offsets.shape[1] == 1 else scores.logsumexp(1)

    def _log(self, logits: Tensor, bias: Tensor | None, shift: Tensor | None) -> Tensor:
        exact = logits.to(self.precision, copy=True)
        if bias is not None:
            exact.add_(bias)
        return self.link.log(exact, shift)


class CompiledRows(Rows):
    """By ``rows.cpp``, for exp and sigsoftmax in float32 and bfloat16 on a CPU."""

    def __init__(self, library: ctypes.CDLL, link: Link, like: Tensor) -> None:
        self.link, self._library = link, library
        self._suffix = {torch.float32: "float32", torch.bfloat16: "bfloat16"}[like.dtype]
        self._no_bias = like.new_zeros(like.shape[1], dtype=torch.float32)

    def shares_(
        self, logits: Tensor, words: Tensor, bias: Tensor | None, shift: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        _put(logits, words, LOWEST)
        return self._reduced("rows", logits, bias, shift)

    def column_sums(self, shares: Tensor, factors: Tensor) -> Tensor:
        sums = self._no_bias.new_empty(shares.shape[1])
        self._call("columns", shares, _floats(factors), *shares.shape, sums)
        return sums

    def log_totals(self, logits: Tensor, bias: Tensor | None, shift: Tensor | None) -> Tensor:
        top, total = self._reduced("totals", logits, bias, shift)
        return top + total.log()

    def mixed(self, logits: Tensor, bias: Tensor | None, shift: Tensor | None, offsets: Tensor) -> Tensor:
        mixed = self._no_bias.new_empty(len(offsets), logits.shape[1])
        self._call(
            "mixed",
            *self._start(logits, bias, shift),
            _floats(offsets),
            *offsets.shape,
            logits.shape[1],
            mixed,
        )
        return mixed

    def _reduced(
        self, name: str, logits: Tensor, bias: Tensor | None, shift: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """log g(m) and Σ_v g(z_v) / g(m), (r, 1)."""
        peak, total = (self._no_bias.new_empty(logits.shape[0], 1) for _ in range(2))
        self._call(name, *self._start(logits, bias, shift), *logits.shape, peak, total)
        return self.link.log(peak, shift), total

    def _start(self, logits: Tensor, bias: Tensor | None, shift: Tensor | None) -> tuple[object, ...]:
        """The arguments that the functions on logits begin with."""
        addend = self._no_bias if bias is None else _floats(bias)
        return ctypes.c_int(self.link is SIGSOFTMAX), logits, addend, ctypes.c_float(float(shift or 0))

    def _call(self, name: str, *arguments: object) -> None:
        function = self._library[f"{name}_{self._suffix}"]
        function(*map(_as_c, arguments), ctypes.c_int(torch.get_num_threads()))


def _put(matrix: Tensor, columns: Tensor, value: float) -> None:
    """``value`` at one of the columns (r,) of every row of a matrix (r, V); scatter_ would copy all of it."""
    matrix[torch.arange(len(columns), device=columns.device), columns] = value


def _floats(tensor: Tensor) -> Tensor:
    """The tensor as the kernels read it."""
    return tensor.float().contiguous()


def _as_c(value: object) -> object:
    """Tensors as pointers to their memory, sizes as long."""
    if isinstance(value, Tensor):
        if not value.is_contiguous():
            raise ValueError(f"a kernel needs contiguous memory, found strides {value.stride()}")
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_long(value) if isinstance(value, int) else value
