"""Options and operands of the losses over the vocabulary, shared by their implementations."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lm.heads.links import Link

# Bytes of the (R, V) buffer: enough for products at full speed, and no more than caches like; more on a GPU,
# where a product of few rows ends before the next one starts.
SCRATCH = {"cpu": 12 * 2**20, "cuda": 2**26}


MIN_ROWS, MAX_ROWS = 160, 4096


EVEN = 32  # rows whose multiples matrix units take at twice the speed of others


@dataclass(frozen=True)
class LossOptions:
    """The static part of a mixture loss: link function, product precision, rows a chunk (0: by size).

    ``skip_below`` > 0 leaves out of the gradient products what has little part in them: components whose
    posterior r_k at a token is below it. The loss stays exact, and so do the gradients of priors, bias and
    shift. The gradient at a token's logits, of the contexts and the output matrix, loses terms whose absolute
    values sum to less than 2 · K · skip_below (4 with sigsoftmax, whose slope reaches 2).
    """

    link: Link
    bf16_products: bool = False
    rows: int = 0
    skip_below: float = 0.0

    @property
    def entry_bytes(self) -> int:
        """Bytes of a logit in the buffer."""
        return 2 if self.bf16_products else 4

    def tokens_per_chunk(self, components: int, vocab: int, device: str = "cpu") -> int:
        """How many tokens go through at once on a type of device."""
        room = SCRATCH.get(device, SCRATCH["cpu"]) // (self.entry_bytes * vocab)
        rows = self.rows or min(MAX_ROWS, max(MIN_ROWS, room))
        tokens, even = max(1, rows // components), EVEN // math.gcd(EVEN, components)
        as_it_is = self.rows or not self.bf16_products or tokens < even
        return tokens if as_it_is else tokens - tokens % even


class Output(NamedTuple):
    """What turns a context into log g: logits W c + b, and the scalar shift of sigsoftmax."""

    weight: Tensor  # (V, E)
    bias: Tensor | None  # (V,)
    shift: Tensor | None  # ()


def tempered(contexts: Tensor, output: Output, temperature: float) -> tuple[Tensor, Output]:
    """What gives the logits divided by ``temperature``."""
    if temperature == 1:
        return contexts, output
    bias = None if output.bias is None else output.bias / temperature
    return contexts / temperature, output._replace(bias=bias)


def rounded(matrix: Tensor) -> Tensor:
    """A matrix (V, E) in bfloat16, (E, V), laid out as products with it are fastest."""
    return matrix.to(torch.bfloat16).t().contiguous()


def logits_of(words: Tensor, contexts: Tensor, output: Output) -> Tensor:
    """W_v c + b_v of a word v (n,) for every component of contexts (n, K, E), (n, K), in their precision."""
    logits = (contexts * output.weight[words][:, None]).sum(2)
    return logits if output.bias is None else logits + output.bias[words, None]
