"""Facets: the contexts of the multi-facet softmax (MFS, Chang & McCallum 2022, § 4).

::

    input of all facets   q = [h ; GELU(L [h ; h of the layers below])]
    facets                c_j = s · a(W_j q + b_j)  with  j = 1 … J + K − 1, and a = tanh, or none (paper)
    first component       logit of word v = w_v · c_j + b_v  with  j = v mod J + 1
    component k > 1       logit of word v = w_v · c_(J + k − 1) + b_v

The vocabulary is divided into J parts, each with a facet of its own. The product of each facet is with its
part of the output matrix only, so that a component of J facets costs as many operations as one of a single
facet. Its words need not lie in one direction of the space of their vectors.

N tokens · H hidden size · J parts · K components · E context size · V words.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.heads.precision import product
from lm.heads.states import Layers


class FacetInputs(nn.Module):
    """The input q of all facets: the hidden state beside a layer of H units that reads several layers.

    Args:
        hidden_size: H.
        lower_sizes: sizes of the layers below the last that it reads.
    """

    def __init__(self, hidden_size: int, lower_sizes: Sequence[int]) -> None:
        super().__init__()
        self.layer = nn.Linear(hidden_size + sum(lower_sizes), hidden_size)  # L

    def forward(self, states: Layers) -> Tensor:
        """q (..., 2 H)."""
        return torch.cat((states.last, F.gelu(self.layer(torch.cat((states.last, *states.lower), -1)))), -1)


def partitioned(
    contexts: Tensor, weight: Tensor, parts: int, bf16: bool = False, operand: Tensor | None = None
) -> Tensor:
    """Logits (n, K, V) without bias, of contexts (n, J + K − 1, E) and an output matrix (V, E).

    Args:
        parts: J.
        bf16, operand: as for :func:`lm.heads.precision.product`.
    """
    first, others = contexts.split((parts, contexts.shape[1] - parts), 1)
    matrix = weight if operand is None else operand.t()
    if bf16 or operand is not None:
        first, matrix = first.bfloat16(), matrix.bfloat16()
    left = len(matrix) % parts  # words after the last whole row of J, so that the matrix is not copied
    rows, rest = matrix.split((len(matrix) - left, left))
    of_rows = torch.einsum("nje,vje->nvj", first, rows.unflatten(0, (-1, parts))).flatten(1)
    of_rest = torch.einsum("nje,je->nj", first[:, :left], rest)
    of_parts = torch.cat((of_rows, of_rest), 1).to(contexts.dtype)
    return torch.cat((of_parts[:, None], product(others, weight, bf16, operand)), 1)
