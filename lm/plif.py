"""PLIF: a piecewise linear increasing function of the logits, which is learned (Ganea et al. 2019).

softmax(f(z)) with one function f for all logits: piecewise linear and increasing, with a slope
s_i = softplus(v_i) > 0 in each of the intervals of length δ = 2T/I into which [−T, T] is divided, and the
outermost slopes beyond. The knots are uniform, so the interval of a logit is a division, whatever their
number. All slopes start at 1, where f is the identity and the head a softmax.

I intervals · T half the range.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from lm.precision import precise


class PiecewiseLinear(nn.Module):
    """f, with ``intervals`` slopes over [−``reach``, ``reach``]."""

    def __init__(self, intervals: int, reach: float) -> None:
        super().__init__()
        self.reach = reach
        self.slopes = nn.Parameter(torch.full((intervals,), math.log(math.e - 1)))  # v

    def forward(self, logits: Tensor) -> Tensor:
        """f of every logit, at least float32."""
        value: Tensor = _Lookup.apply(  # type: ignore[no-untyped-call]
            logits, softplus(precise(self.slopes)), self.reach
        )
        return value


class _Lookup(torch.autograd.Function):
    """f(z) = −T + δ Σ_{j<i} s_j + s_i (z − knot_i), i the interval of z.

    Its gradient at the slopes needs two sums for each interval, of the incoming gradients and of those times
    z − knot, and no tensor of the size of the logits beside them.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, slopes: Tensor, reach: float) -> Tensor:  # type: ignore[no-untyped-def]
        step = 2 * reach / len(slopes)
        interval = ((logits.detach() + reach) / step).long().clamp_(0, len(slopes) - 1)
        beyond = logits + reach - interval.to(logits.dtype) * step  # z − knot
        ctx.step = step
        ctx.save_for_backward(interval, beyond, slopes)
        base = (slopes.cumsum(0) - slopes) * step - reach
        return base[interval].addcmul_(slopes[interval], beyond)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[no-untyped-def]
        interval, beyond, slopes = ctx.saved_tensors
        flat = interval.flatten()
        inside = torch.zeros_like(slopes).index_add_(0, flat, (grad * beyond).flatten())
        arrived = torch.zeros_like(slopes).index_add_(0, flat, grad.flatten())
        above = arrived.sum() - arrived.cumsum(0)  # of the intervals above each
        return grad * slopes[interval], inside + ctx.step * above, None
