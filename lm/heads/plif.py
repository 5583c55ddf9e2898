"""PLIF: a piecewise linear increasing function of the logits, which is learned (Ganea et al. 2019).

softmax(f(z)) with one function f for all logits: piecewise linear and increasing, with a slope
s_i = softplus(v_i) > 0 in each of the intervals of length δ = 2T/I into which [−T, T] is divided, and the
outermost slopes beyond. The knots are uniform, so the interval of a logit is a division, whatever their
number. All slopes start at 1, where f is the identity and the head a softmax; weight decay draws v to 0, and
so slopes to log 2. A temperature divides what f is given, not what it returns.

I intervals · T half the range.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from lm.heads.precision import precise


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
    """f, laid through (knot_m, knot_m) for the knot in the middle, at 0 if there are as many on either side.

    For z in the interval i, f(z) = knot_m + s_i (z − knot_i) + δ times the sum of the slopes between the two
    knots, which is subtracted left of the middle. So a slope acts on the logits that lie beyond it, and
    has no gradient where there are none: all of f could be shifted, for a softmax, but a sum over all logits
    that ought to be 0 is rounding error, which Adam takes for a direction.

    The gradient at the slopes needs two sums for each interval, of the incoming gradients and of those times
    z − knot, and no tensor of the size of the logits beside them.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, slopes: Tensor, reach: float) -> Tensor:  # type: ignore[no-untyped-def]
        count = len(slopes)
        step = 2 * reach / count
        place = ((logits.detach() + reach) / step).clamp_(0, count - 1)
        interval = place.nan_to_num_(0).int()
        beyond = logits + reach - interval.to(logits.dtype) * step  # z − knot
        ctx.step = step
        ctx.save_for_backward(interval, beyond, slopes)
        middle = count // 2
        below, above = slopes.tensor_split((middle,))
        rise = torch.cat((-_to_the_right(below), _running(above) - above))
        base = rise * step + (middle * step - reach)
        return base[interval].addcmul_(slopes[interval], beyond)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[no-untyped-def]
        interval, beyond, slopes = ctx.saved_tensors
        flat = interval.flatten()
        inside = torch.zeros_like(slopes).index_add_(0, flat, (grad * beyond).flatten())
        arrived = torch.zeros_like(slopes).index_add_(0, flat, grad.flatten())
        below, above = arrived.tensor_split((len(slopes) // 2,))
        passed = torch.cat((-_running(below), _to_the_right(above) - above))
        return grad * slopes[interval], inside + ctx.step * passed, None


def _running(values: Tensor) -> Tensor:
    """The sums up to each value. On the CPU, for CUDA has none that gives the same bits every time."""
    return values.cpu().cumsum(0).to(values.device)


def _to_the_right(values: Tensor) -> Tensor:
    """The sums from each value on."""
    return _running(values.flip(0)).flip(0)
