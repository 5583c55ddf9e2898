"""PLIF: a learned piecewise linear increasing function of the logits (Ganea et al. 2019).

The head is softmax(f(z)), with one function f for all logits. f is piecewise linear and increasing. [−T, T]
is divided into I intervals of length δ = 2T/I, each with a slope s_i = softplus(v_i) > 0. The outermost
slopes continue beyond. The knots are uniform, so a division finds the interval of a logit, regardless of
their number. All slopes start at 1, which makes f the identity and the head a softmax. Weight decay draws v
to 0, and therefore slopes to log 2. A temperature divides the input of f, not its output.

I intervals · T half the range.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from lm.heads.precision import cumulative, precise


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
    """f through the point (knot_m, knot_m) of the middle knot, which is 0 for an even number of intervals.

    For z in the interval i, f(z) = knot_m + s_i (z − knot_i) ± δ Σ s. The sum is over the slopes between the
    two knots, and is subtracted left of the middle. A slope therefore acts only on logits beyond it, seen
    from the middle, and has gradient 0 without such logits.

    A softmax would allow any constant shift of f. Fixing another point, however, makes some gradients sums
    over all logits that are 0 except for rounding errors, which Adam takes for a direction.

    The gradient of the slopes needs two sums for each interval: of the incoming gradients, and of the
    incoming gradients times z − knot. It needs no further tensor of the size of the logits.
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
        ctx.save_for_forward(interval, slopes)
        middle = count // 2
        below, above = slopes.tensor_split((middle,))
        rise = torch.cat((-_to_the_right(below), cumulative(above, 0) - above))
        base = rise * step + (middle * step - reach)
        return base[interval].addcmul_(slopes[interval], beyond)

    @staticmethod
    def jvp(ctx, change: Tensor, of_slopes: None, of_reach: None) -> Tensor:  # type: ignore[no-untyped-def]
        interval, slopes = ctx.saved_tensors  # forward mode is for changes of the logits only
        changed: Tensor = change * slopes[interval]
        return changed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[no-untyped-def]
        interval, beyond, slopes = ctx.saved_tensors
        flat = interval.flatten()
        inside = torch.zeros_like(slopes).index_add_(0, flat, (grad * beyond).flatten())
        arrived = torch.zeros_like(slopes).index_add_(0, flat, grad.flatten())
        below, above = arrived.tensor_split((len(slopes) // 2,))
        passed = torch.cat((-cumulative(below, 0), _to_the_right(above) - above))
        return grad * slopes[interval], inside + ctx.step * passed, None


def _to_the_right(values: Tensor) -> Tensor:
    """Cumulative sums from the right."""
    return cumulative(values.flip(0), 0).flip(0)
