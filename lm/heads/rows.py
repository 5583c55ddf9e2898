"""Row-wise reductions of a logit matrix for a link g, a block of rows at a time.

A block stays in the cache during all its operations. Logits in bfloat16 become float32 only there.

R rows · N tokens · K components · V words.
"""

from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

import torch
from torch import Tensor

from lm.heads.links import Link

LOWEST = -1e38  # a logit without a share; finite, because it may be the only one of a row
UNKNOWN_CACHE = 2**19  # bytes, if the system does not report a size
# The sum of smaller shares is rounded.
IMPROBABLE = {dtype: 1e8 * torch.finfo(dtype).tiny for dtype in (torch.float32, torch.float64)}
ON_GPU = 2**26  # bytes of a block; smaller ones would leave processors idle


class Rows:
    """Reductions of chunks with at most as many rows as ``like`` (R, V), in its precision."""

    def __init__(self, link: Link, like: Tensor) -> None:
        self.link = link
        self.precision = torch.float64 if like.dtype == torch.float64 else torch.float32
        self.exact = like.dtype == self.precision
        # half a cache, because the system and the bias take part of it
        size = ON_GPU if like.is_cuda else cache_bytes() // 2 * torch.get_num_threads()
        row = like.shape[1] * self.precision.itemsize * link.buffers
        self.block = min(len(like), max(1, size // max(1, row)))
        # all blocks share them
        self._spares = like.new_empty((link.buffers - 1, self.block, like.shape[1]), dtype=self.precision)

    def shares_(
        self, logits: Tensor, words: Tensor, bias: Tensor | None, shift: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Overwrite ``logits`` z (r, V) with shares, after adding ``bias`` (V,); returns log u and totals.

        A share is g(z_v) / u · d log g / dz at z_v, and 0 at the row's own word in ``words`` (r,). u is near
        the largest g of the other words. Totals are Σ_v g(z_v) / u over the other words, (r, 1), and log u is
        (r, 1), too.
        """
        top, total = (logits.new_empty((len(logits), 1), dtype=self.precision) for _ in range(2))
        numbers = torch.arange(len(logits), device=logits.device)
        places = words + numbers % self.block * logits.shape[1]  # of the words, each within its block
        for part in self._parts(len(logits)):
            given, spares = logits[part], self._spares[:, : part.stop - part.start]
            scores = given if self.exact else self._copy(given)
            if bias is not None:
                scores.add_(bias)
            own = scores.view(-1).index_fill_(0, places[part], LOWEST)
            top[part] = self.link.shares_(scores, scores.amax(1, keepdim=True), shift, spares)
            own.index_fill_(0, places[part], 0)  # not every g is 0 at LOWEST
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
            scores, spares = self._copy(logits[part], bias), self._spares[:, : part.stop - part.start]
            peak = scores.amax(1, keepdim=True).clamp_(min=LOWEST)  # avoids −∞ − −∞
            top = self.link.shares_(scores, peak, shift, spares)
            totals[part] = scores.sum(1, keepdim=True).log_().add_(top)
        return totals

    def log_probs(
        self, logits: Tensor, bias: Tensor | None, shift: Tensor | None, log_prior: Tensor, out: Tensor
    ) -> None:
        """Write log Σ_k π_k g(z_nkv) / Σ_v g(z_nkv), ``out`` (N, V), of logits (N·K, V) and log π (N, K).

        A single component has log π = 0.
        Mixtures add the shares of a block, which the totals need anyway, so an entry takes one exponential.
        A token with a word so improbable that this would round is mixed in the log domain instead.
        """
        tokens, components = log_prior.shape
        for token in self._parts(tokens, components):
            block = logits[token.start * components : token.stop * components]
            if components == 1:
                torch.log_softmax(self._log_g(block, bias, shift), 1, out=out[token])
            else:
                self._mix(block, bias, shift, log_prior[token].to(self.precision), out[token])

    def _mix(
        self, logits: Tensor, bias: Tensor | None, shift: Tensor | None, log_prior: Tensor, out: Tensor
    ) -> None:
        """Write log-probabilities (n, V) by the sum of shares where none is too small for it.

        Each token decides for itself, so that no other token of the block changes its bits.
        """
        shares = self._log_g(logits, bias, shift)
        shares.sub_(shares.amax(1, keepdim=True).clamp_(min=LOWEST)).exp_()  # avoids −∞ − −∞
        weights = log_prior.exp() / shares.sum(1).view_as(log_prior)  # (n, K)
        torch.bmm(weights[:, None], shares.unflatten(0, log_prior.shape), out=out[:, None])
        small = (~(out.amin(1) > IMPROBABLE[self.precision])).nonzero().flatten()  # NaN counts, too
        out.log_()
        if len(small):
            log_g = self._log_g(logits, bias, shift).unflatten(0, log_prior.shape)[small]
            out[small] = log_g.log_softmax(2).add_(log_prior[small, :, None]).logsumexp(1)

    def _log_g(self, logits: Tensor, bias: Tensor | None, shift: Tensor | None) -> Tensor:
        """log g of a block, in a tensor that may be overwritten."""
        return self.link.log(self._copy(logits, bias), shift)

    def _parts(self, count: int, rows: int = 1) -> Iterator[slice]:
        """Blocks of ``count`` items with ``rows`` rows each."""
        size = max(1, self.block // rows)
        return (slice(start, min(start + size, count)) for start in range(0, count, size))

    @cached_property
    def _copied(self) -> Tensor:
        """Buffer for a copy of a block, which the shares of exact logits do not need."""
        return self._spares.new_empty((self.block, self._spares.shape[2]))

    def _copy(self, logits: Tensor, bias: Tensor | None = None) -> Tensor:
        """A copy of a block in full precision, plus the bias."""
        fits = len(logits) <= self.block  # a token can have more rows than a block
        copy = self._copied[: len(logits)] if fits else torch.empty_like(logits, dtype=self.precision)
        return copy.copy_(logits) if bias is None else torch.add(logits, bias, out=copy)


@cache
def cache_bytes() -> int:
    """Size of a core's second-level cache in bytes, as the system reports it."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().strip()
        return int(text.removesuffix("K")) * 2**10
    except (OSError, ValueError):
        return UNKNOWN_CACHE
