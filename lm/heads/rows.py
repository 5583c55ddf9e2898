"""Row-wise reductions of a logit matrix for a link g, a block of rows at a time.

A block stays in the cache during all its operations. Logits in bfloat16 become float32 only there.

R rows · N tokens · K components · V words.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from lm.heads.links import Link

LOWEST = -1e38  # a logit without a share; finite, because it may be the only one of a row
UNKNOWN_CACHE = 2**19  # bytes, if the system does not report a size
ON_GPU = 2**26  # bytes of a block; smaller ones would leave processors idle


class Rows:
    """Reductions of chunks with at most as many rows as ``like`` (R, V), in its precision."""

    def __init__(self, link: Link, like: Tensor) -> None:
        self.link = link
        self.precision = torch.float64 if like.dtype == torch.float64 else torch.float32
        self.exact = like.dtype == self.precision
        size = ON_GPU if like.is_cuda else cache_bytes() * torch.get_num_threads()
        row = like.shape[1] * self.precision.itemsize * link.buffers
        self.block = min(len(like), max(1, size // max(1, row)))
        # besides the logits, a copy and the spares of the link; all blocks share them
        self._buffers = like.new_empty((link.buffers, self.block, like.shape[1]), dtype=self.precision)

    def shares_(
        self, logits: Tensor, words: Tensor, bias: Tensor | None, shift: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Overwrite ``logits`` z (r, V) with shares, after adding ``bias`` (V,); returns log u and totals.

        A share is g(z_v) / u · d log g / dz at z_v, and 0 at the row's own word in ``words`` (r,). u is near
        the largest g of the other words. Totals are Σ_v g(z_v) / u over the other words, (r, 1), and log u is
        (r, 1), too.
        """
        top, total = (logits.new_empty((len(logits), 1), dtype=self.precision) for _ in range(2))
        for part in self._parts(len(logits)):
            given, spares = logits[part], self._buffers[1:, : part.stop - part.start]
            scores = given if self.exact else self._copy(given)
            if bias is not None:
                scores.add_(bias)
            _put(scores, words[part], LOWEST)
            top[part] = self.link.shares_(scores, scores.amax(1, keepdim=True), shift, spares)
            _put(scores, words[part], 0)  # not every g is 0 at LOWEST
            torch.sum(scores, 1, keepdim=True, out=total[part])
            self.link.times_slope_(scores, spares)
            if not self.exact:
                given.copy_(scores)
        return top, total

    def column_sums(self, shares: Tensor, factors: Tensor) -> Tensor:
        """Σ_r factors_r · shares_rv, (V,), for shares (r, V) and factors (r, 1)."""
        if self.exact:
            return torch.mv(shares.t(), factors[:, 0])
        sums = factors.new_zeros(shares.shape[1])
        for part in self._parts(len(shares)):
            sums.addmv_(self._copy(shares[part]).t(), factors[part, 0])
        return sums

    def log_totals(self, logits: Tensor, bias: Tensor | None, shift: Tensor | None) -> Tensor:
        """log Σ_v g(z_v), (r, 1); ``logits`` are unchanged."""
        totals = logits.new_empty((len(logits), 1), dtype=self.precision)
        for part in self._parts(len(logits)):
            scores, spares = self._copy(logits[part], bias), self._buffers[1:, : part.stop - part.start]
            peak = scores.amax(1, keepdim=True).clamp_(min=LOWEST)  # avoids −∞ − −∞
            top = self.link.shares_(scores, peak, shift, spares)
            totals[part] = scores.sum(1, keepdim=True).log_().add_(top)
        return totals

    def mixed(self, logits: Tensor, bias: Tensor | None, shift: Tensor | None, offsets: Tensor) -> Tensor:
        """log Σ_k exp(log g(z_nkv) + o_nk), (N, V), of logits (N·K, V) and ``offsets`` o (N, K)."""
        tokens, components = offsets.shape
        mixed = logits.new_empty((tokens, logits.shape[1]), dtype=self.precision)
        for token in self._parts(tokens, components):
            rows = slice(token.start * components, token.stop * components)
            scores = self.link.log(self._copy(logits[rows], bias), shift)
            scores = scores.add_(offsets[token].reshape(-1, 1))
            if components == 1:
                mixed[token] = scores
            else:
                torch.logsumexp(scores.unflatten(0, (-1, components)), 1, out=mixed[token])
        return mixed

    def _parts(self, count: int, rows: int = 1) -> Iterator[slice]:
        """Blocks of ``count`` items with ``rows`` rows each."""
        size = max(1, self.block // rows)
        return (slice(start, min(start + size, count)) for start in range(0, count, size))

    def _copy(self, logits: Tensor, bias: Tensor | None = None) -> Tensor:
        """A copy of a block in full precision, plus the bias."""
        fits = len(logits) <= self.block  # a token can have more rows than a block
        copy = self._buffers[0, : len(logits)] if fits else torch.empty_like(logits, dtype=self.precision)
        return copy.copy_(logits) if bias is None else torch.add(logits, bias, out=copy)


@cache
def cache_bytes() -> int:
    """Size of a core's second-level cache in bytes, as the system reports it."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().strip()
        return int(text.removesuffix("K")) * 2**10
    except (OSError, ValueError):
        return UNKNOWN_CACHE


def _put(matrix: Tensor, columns: Tensor, value: float) -> None:
    """Set one of ``columns`` (r,) in every row of a matrix (r, V); scatter_ would copy the matrix."""
    matrix[torch.arange(len(columns), device=columns.device), columns] = value
