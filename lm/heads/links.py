"""Link functions: log g(z), the unnormalised log-probability of a logit.

Every head is Σ_k π_k · g(z_k) / Σ_v g(z_k,v) for one of these g. Each g is increasing or constant in z, so
the largest logit has the largest log g. Each g is also elementwise, so its slope d log g / dz is enough
to carry a gradient from log g back to the logits.

The shift b is a scalar that only sigsoftmax reads (Kanai et al. 2018, Eq. 16).
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

RELU_FLOOR = 1e-8  # ε of Kanai et al. 2018, Eq. 34


class Link(ABC):
    """One g: the formulas ``log`` and ``slope``, and in place for the loss ``shares_`` and ``times_slope_``.

    ``buffers`` is the number of (R, V) tensors of the in-place form that the loss provides: the logits, and
    the spare tensors in which ``shares_`` leaves slopes for ``times_slope_``. The in-place form here follows
    from the formulas, and takes two more tensors for a moment.
    """

    buffers: ClassVar[int] = 2

    @abstractmethod
    def log(self, logits: Tensor, shift: Tensor | None = None) -> Tensor:
        """log g of ``logits``, elementwise; finite for finite logits."""

    @abstractmethod
    def slope(self, logits: Tensor, shift: Tensor | None = None) -> Tensor:
        """d log g / dz, elementwise."""

    @abstractmethod
    def inverse(self, shares: Tensor) -> Tensor:
        """Logits z with g(z) = ``shares`` at the shift 0, elementwise; ``shares`` are between 0 and 1."""

    def shares_(self, logits: Tensor, peak: Tensor, shift: Tensor | None, spares: Tensor) -> Tensor:
        """Overwrite ``logits`` z (R, V) with g(z) / u; returns log u (R, 1).

        u is between g(m) and 2 g(m), for the largest logits m of the rows, ``peak`` (R, 1).
        ``spares`` (buffers − 1, R, V) is overwritten.
        """
        top = self.log(peak, shift)
        spares[0] = self.slope(logits, shift)
        logits.copy_(self.log(logits, shift)).sub_(top).exp_()
        return top

    def times_slope_(self, shares: Tensor, spares: Tensor) -> Tensor:
        """Multiply ``shares`` (R, V) in place by the slope at the logits of the last ``shares_``."""
        return shares.mul_(spares[0])

    def log_normalised(self, logits: Tensor, shift: Tensor | None = None) -> Tensor:
        """log g(z) − log Σ_v g(z_v) over the last dimension."""
        return torch.log_softmax(self.log(logits, shift), dim=-1)


class Exponential(Link):
    """g(z) = exp(z): softmax."""

    buffers = 1

    def log(self, logits: Tensor, shift: Tensor | None = None) -> Tensor:
        return logits

    def slope(self, logits: Tensor, shift: Tensor | None = None) -> Tensor:
        return torch.ones_like(logits)

    def inverse(self, shares: Tensor) -> Tensor:
        return shares.log()

    def shares_(self, logits: Tensor, peak: Tensor, shift: Tensor | None, spares: Tensor) -> Tensor:
        logits.sub_(peak).exp_()
        return peak

    def times_slope_(self, shares: Tensor, spares: Tensor) -> Tensor:
        return shares


class Sigsoftmax(Link):
    """g(z) = exp(z)·σ(z + b) (Kanai et al. 2018, Eq. 11, 16); its slope is 2 − σ(z + b) (Theorem 5).

    The loss takes one exponential of a logit, e = exp(z − m). With s = m + b, σ(z + b) is a·e / (a·e + c) for
    a = 1 and c = exp(−s). For s < 0, both a and c are multiplied by exp(s), so that neither overflows.
    """

    def log(self, logits: Tensor, shift: Tensor | None = None) -> Tensor:
        return logits + F.logsigmoid(logits if shift is None else logits + shift)

    def slope(self, logits: Tensor, shift: Tensor | None = None) -> Tensor:
        return 1 + torch.sigmoid(-(logits if shift is None else logits + shift))

    def inverse(self, shares: Tensor) -> Tensor:
        return ((shares + (shares.square() + 4 * shares).sqrt()) / 2).log()  # of e² = g (1 + e), e = exp(z)

    def shares_(self, logits: Tensor, peak: Tensor, shift: Tensor | None, spares: Tensor) -> Tensor:
        top = peak if shift is None else peak + shift
        a = top.clamp(max=0).exp_()
        c = (-top).clamp(max=0).exp_().clamp_(min=torch.finfo(top.dtype).tiny)  # avoids 0 / 0 for e = 0
        ratio = torch.addcmul(c, logits.sub_(peak).exp_(), a, out=spares[0])
        torch.div(logits, ratio, out=ratio)  # σ / a
        logits.mul_(ratio)
        ratio.mul_(-a).add_(2)
        return peak + top.clamp(max=0)  # of g(m) (a + c)


class Sigmoid(Link):
    """g(z) = σ(z), a baseline (Kanai et al. 2018, Eq. 35); its slope is 1 − σ(z)."""

    def log(self, logits: Tensor, shift: Tensor | None = None) -> Tensor:
        return F.logsigmoid(logits)

    def slope(self, logits: Tensor, shift: Tensor | None = None) -> Tensor:
        return torch.sigmoid(-logits)

    def inverse(self, shares: Tensor) -> Tensor:
        return shares.logit()


class Relu(Link):
    """g(z) = relu(z) + ε, a baseline (Kanai et al. 2018, Eq. 34).

    Its slope is 1 / (z + ε) for z > 0, up to 10⁸ just above zero, and 0 elsewhere. Training with it also
    diverges in the paper (Table 4).
    """

    def log(self, logits: Tensor, shift: Tensor | None = None) -> Tensor:
        return (F.relu(logits) + RELU_FLOOR).log()

    def slope(self, logits: Tensor, shift: Tensor | None = None) -> Tensor:
        return (logits > 0) / (F.relu(logits) + RELU_FLOOR)

    def inverse(self, shares: Tensor) -> Tensor:
        return shares - RELU_FLOOR


EXP, SIGSOFTMAX, SIGMOID, RELU = Exponential(), Sigsoftmax(), Sigmoid(), Relu()
LINKS: dict[str, Link] = {"exp": EXP, "sigsoftmax": SIGSOFTMAX, "sigmoid": SIGMOID, "relu": RELU}
