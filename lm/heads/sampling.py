"""Sampling of tokens: temperature, top-k and top-p, by inverting the cumulative distribution.

R rows · V words.
"""

from typing import Literal, Protocol

import torch
from torch import Tensor

INFINITY = float("inf")


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
    vocab = log_probs.shape[1]
    tokens: Tensor | None = None
    if 0 < filters.top_k < vocab or filters.top_p < 1:
        log_probs, tokens = ranked(log_probs, min(filters.top_k or vocab, vocab))
    temperature = filters.temperature if filters.temperature_on == "mixture" else 1.0
    log_probs = log_probs.double()
    # Relative to the best token, which stays possible at the lowest temperature.
    probs = torch.softmax((log_probs - log_probs.max(1, keepdim=True).values) / temperature, 1)
    if filters.top_p < 1:
        before = probs.cumsum(1) - probs  # the probability of the better tokens
        probs = probs.masked_fill(before >= filters.top_p, 0)
    cumulative = probs.cumsum(1)
    threshold = uniform.unsqueeze(1) * cumulative[:, -1:]
    # The first place beyond the threshold, so never a token with probability 0.
    place = torch.searchsorted(cumulative, threshold, right=True)
    return (place if tokens is None else tokens.gather(1, place)).squeeze(1)


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
    best, index, tied = best[:, :count], index[:, :count], (best[:, -1:] == edge) & (edge > -INFINITY)
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
