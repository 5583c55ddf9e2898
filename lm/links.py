"""Link functions: log g(z), the unnormalised log-probability of a logit.

Every head is Σ_k π_k · g(z_k) / Σ_v g(z_k,v) for one of these g. ``slope`` is d log g / dz, which is all
that the loss needs to carry a gradient from log g back to the logits.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Link:
    """g(z) = exp(z), or g(z) = exp(z)·σ(z + b) where ``sigmoid`` is set (Kanai et al. 2018, Eq. 11, 16).

    Both are monotone in z, so the largest logit has the largest log g.
    """

    sigmoid: bool

    def log(self, logits: Tensor, shift: Tensor | None = None) -> Tensor:
        """log g of ``logits``, elementwise and finite wherever the logits are; ``shift`` is the scalar b."""
        if not self.sigmoid:
            return logits
        shifted = logits if shift is None else logits + shift
        return logits + F.logsigmoid(shifted)

    def log_normalised(self, logits: Tensor, shift: Tensor | None = None) -> Tensor:
        """log g(z) − log Σ_v g(z_v) over the last dimension."""
        return torch.log_softmax(self.log(logits, shift), dim=-1)

    def slope_minus_one(self, logits: Tensor, shift: Tensor | None) -> Tensor:
        """d log g / dz − 1 = 1 − σ(z + b) of sigsoftmax (Theorem 5: the derivative carries 2 − σ(z))."""
        shifted = logits if shift is None else logits + shift
        return torch.sigmoid(-shifted)


EXP = Link(sigmoid=False)
SIGSOFTMAX = Link(sigmoid=True)
