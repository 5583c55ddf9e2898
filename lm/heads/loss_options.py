"""Options and operands of the losses over the vocabulary, shared by their implementations."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lm.heads.links import Link

# Bytes of the (R, V) buffer: enough for products at full speed, and small enough for caches. A GPU needs
# more, because a product of few rows ends before the next one is launched.
SCRATCH = {"cpu": 12 * 2**20, "cuda": 2**26}
MIN_ROWS, MAX_ROWS = 160, 4096
EVEN = 32  # number of rows whose multiples run at twice the speed on matrix units


@dataclass(frozen=True)
class LossOptions:
    """Static options of a mixture loss: link function, precision of products, rows a chunk (0 = by size).

    ``skip_below`` > 0 omits components whose posterior r_k at a token is smaller from the gradient products
    of contexts and output matrix. The loss and the gradients of priors, bias and shift stay exact. At a
    token's logits, the omitted gradient terms have absolute values that sum to less than 2 · K · skip_below
    (4 · K · skip_below with sigsoftmax, whose slope reaches 2).
    """

    link: Link
    bf16_products: bool = False
    rows: int = 0
    skip_below: float = 0.0

    @property
    def entry_bytes(self) -> int:
        """Size of a logit in the buffer, in bytes."""
        return 2 if self.bf16_products else 4

    def tokens_per_chunk(self, components: int, vocab: int, device: str = "cpu") -> int:
        """Number of tokens in a chunk on a type of device."""
        room = SCRATCH.get(device, SCRATCH["cpu"]) // (self.entry_bytes * vocab)
        rows = self.rows or min(MAX_ROWS, max(MIN_ROWS, room))
        tokens, even = max(1, rows // components), EVEN // math.gcd(EVEN, components)
        as_it_is = self.rows or not self.bf16_products or tokens < even
        return tokens if as_it_is else tokens - tokens % even


class Output(NamedTuple):
    """Parameters from a context to log g: W and b of the logits W c + b, and the shift of sigsoftmax."""

    weight: Tensor  # (V, E)
    bias: Tensor | None  # (V,)
    shift: Tensor | None  # ()


def tempered(contexts: Tensor, output: Output, temperature: float) -> tuple[Tensor, Output]:
    """Contexts and output whose logits are divided by ``temperature``."""
    if temperature == 1:
        return contexts, output
    bias = None if output.bias is None else output.bias / temperature
    return contexts / temperature, output._replace(bias=bias)


def rounded(matrix: Tensor) -> Tensor:
    """A matrix (V, E) transposed to (E, V) in bfloat16, in the layout of the fastest products."""
    return matrix.to(torch.bfloat16).t().contiguous()


def logits_of(words: Tensor, contexts: Tensor, output: Output) -> Tensor:
    """Logits W_v c + b_v of one word v a token (n,), for contexts (n, K, E): (n, K), in their precision."""
    logits = (contexts * output.weight[words][:, None]).sum(2)
    return logits if output.bias is None else logits + output.bias[words, None]
