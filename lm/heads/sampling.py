"""Sampling of tokens: temperature, top-k and top-p, by inverting the cumulative distribution.

R rows · V words.
"""

import math
import sys
from typing import Literal, Protocol

import torch
from torch import Tensor

from lm.heads.precision import cumulative

_LEAST = sys.float_info.min  # a smaller temperature or share may count as 0
DRAWN_ENTRIES = 2**15  # of a block of rows, which fits the cache
CANDIDATES = 256  # most probable tokens among which a nucleus is sought first


class Filters(Protocol):
    """Options of sampling: temperature, top-k and top-p."""

    @property
    def temperature(self) -> float: ...

    @property
    def temperature_on(self) -> Literal["mixture", "components"]: ...

    @property
    def top_k(self) -> int: ...

    @property
    def top_p(self) -> float: ...


def draw_tokens(log_probs: Tensor, uniform: Tensor, filters: Filters) -> Tensor:
    """Tokens (R,) drawn from ``log_probs`` (R, V) by inverting the tempered CDF at ``uniform`` (R,).

    The temperature applies first, except to tempered components. Then the ``top_k`` most probable tokens are
    kept, and of these the fewest that hold ``top_p`` of their probability (Holtzman et al. 2020). Every row
    needs a possible token.
    """
    rows = max(1, DRAWN_ENTRIES // log_probs.shape[1] if log_probs.is_cpu else len(log_probs))
    parts = zip(log_probs.split(rows), uniform.split(rows), strict=True)
    return torch.cat([_drawn(part, at, filters) for part, at in parts])


def _drawn(log_probs: Tensor, uniform: Tensor, filters: Filters) -> Tensor:
    """:func:`draw_tokens` for a block of rows."""
    order: Tensor | None = None
    if 0 < filters.top_k < log_probs.shape[1]:
        log_probs, order = ranked(log_probs, filters.top_k)
    temperature = max(filters.temperature, _LEAST) if filters.temperature_on == "mixture" else 1.0
    probs = log_probs.to(torch.float64, copy=True)
    # Relative to the best token, which stays possible at the lowest temperature.
    probs.sub_(probs.amax(1, keepdim=True)).div_(temperature)
    if filters.top_p < 1:
        probs, places = _nucleus(log_probs, probs.softmax(1), max(filters.top_p, _LEAST))
        order = places if order is None else order.gather(1, places)
    else:
        probs.exp_()
    sums = cumulative(probs, 1)
    threshold = uniform.unsqueeze(1) * sums[:, -1:]
    # The first place beyond the threshold, so never a token with probability 0.
    place = torch.searchsorted(sums, threshold, right=True)
    return (place if order is None else order.gather(1, place)).squeeze(1)


def _nucleus(log_probs: Tensor, probs: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Probabilities of the best tokens, 0 behind the fewest that hold ``top_p``, and the tokens, (R, n).

    ``log_probs`` (R, V) rank. Few tokens usually suffice, and then the others need no order.
    """
    vocab = probs.shape[1]
    for count in (min(CANDIDATES, vocab), vocab):
        tokens = ranked(log_probs, count)[1]
        found = probs.gather(1, tokens)
        before = cumulative(found, 1) - found  # the probability of the better tokens
        if count == vocab or bool((before[:, -1] >= top_p).all()):
            break
    return found.masked_fill_(before >= top_p, 0), tokens


def ranked(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and indices of the ``count`` largest in each row of ``values`` (R, V); ties are sorted by index.

    ``topk`` leaves open the order of ties, and which of them it returns at the edge. -inf ranks last, and
    ties of -inf stay unsorted.
    """
    if count == values.shape[1]:
        order = values.sort(dim=1, descending=True, stable=True)
        return order.values, order.indices
    best, index = values.topk(count + 1, dim=1)
    edge = best[:, -2:-1]  # the smallest value that is returned
    best, index, tied = best[:, :count], index[:, :count], (best[:, -1:] == edge) & (edge > -math.inf)
    if bool(tied.any()):
        rows = tied[:, 0].nonzero()[:, 0]
        tie, column = (values[rows] == edge[rows]).nonzero(as_tuple=True)
        above = (best[rows] > edge[rows]).sum(1)
        first = torch.searchsorted(tie, torch.arange(len(rows), device=tie.device))
        place = above[tie] + torch.arange(len(tie), device=tie.device) - first[tie]
        taken = place < count
        index[rows[tie[taken]], place[taken]] = column[taken]
    index, order_by_index = index.sort(dim=1)
    best, order_by_value = best.gather(1, order_by_index).sort(dim=1, descending=True, stable=True)
    return best, index.gather(1, order_by_value)
