"""The LSTM unrolled over time in one autograd function, for cells that gate what they read.

Inside the loop is only what is truly sequential: products with B rows and the elementwise work of a step.
Every weight gradient is one product over all steps, after the loop. There are no autograd nodes for steps.

T time · B streams · I input size · H hidden size.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lm.gating import Gating, MaybeTensors, deferred
from lm.kernels.products import products_with


class Weights(NamedTuple):
    """Of the LSTM equations; rows are those of input, forget, cell and output gate, as in torch."""

    inputs: Tensor | None  # (4H, I); None where the inputs are W x + b already
    hidden: Tensor  # (4H, H)
    bias: Tensor | None  # (4H,), with the former


class Cell(NamedTuple):
    """The static part of a cell."""

    gating: Callable[[MaybeTensors], Gating]
    capped: bool = False  # the input gate is min(i, 1 - f), so that |c| stays below 1


def unrolled_lstm(
    cell: Cell,
    inputs: Tensor,
    state: tuple[Tensor, Tensor],
    weights: Weights,
    tensors: MaybeTensors = (),
    state_mask: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One layer over one window.

    Args:
        inputs: (T, B, I), or W x + b of them, (T, B, 4H), if ``weights`` leave that out.
        state: (h, c) before the window, each (B, H).
        tensors: weights and buffers of the gating.
        state_mask: multiplies h wherever a step reads it, (B, H) or (T, B, H); the outputs are not masked.

    Returns:
        outputs (T, B, H) and the state (h, c) after the window.
    """
    steps, hidden_size = inputs.shape[0], weights.hidden.shape[1]
    mask = None if state_mask is None else state_mask.expand(steps, -1, hidden_size)
    h, c = state[0].contiguous(), state[1].contiguous()
    outputs, c = _UnrolledLSTM.apply(cell, inputs.contiguous(), h, c, mask, *weights, *tensors)  # type: ignore[no-untyped-call]
    return outputs, (outputs[-1], c)


class _UnrolledLSTM(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, cell: Cell, inputs: Tensor, h: Tensor, c: Tensor, mask: Tensor | None,
        weight_ih: Tensor | None, weight_hh: Tensor, bias: Tensor | None, *tensors: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        gating, size = cell.gating(tensors), weight_hh.shape[1]
        window = inputs.shape[:2]
        act = inputs.clone() if bias is None else inputs.new_empty(*window, 4 * size).copy_(bias)
        mixed = None if weight_ih is None else products_with(weight_ih, len(act))
        recurrent = products_with(weight_hh, len(act))
        outputs, cells, squashed = (inputs.new_empty(*window, size) for _ in range(3))
        h0, c0 = h, c
        for t, a in enumerate(act.unbind()):
            x, h = gating.step(t, inputs[t], h if mask is None else h * mask[t])
            if mixed is not None:
                mixed.add(x, a)
            recurrent.add(h, a)
            a[:, : 2 * size].sigmoid_()
            a[:, 2 * size : 3 * size].tanh_()
            a[:, 3 * size :].sigmoid_()
            i, f, g, o = a.chunk(4, 1)
            if cell.capped:
                torch.minimum(i, 1 - f, out=i)
            c = torch.mul(f, c, out=cells[t]).addcmul_(i, g)
            h = torch.mul(o, torch.tanh(c, out=squashed[t]), out=outputs[t])
        ctx.cell = cell
        ctx.save_for_backward(
            act, outputs, cells, squashed, inputs, h0, c0, mask, weight_ih, weight_hh, *gating.tensors
        )
        return outputs, c.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_outputs: Tensor, grad_c: Tensor):  # type: ignore[no-untyped-def]
        act, outputs, cells, squashed, inputs, h0, c0, mask, weight_ih, weight_hh, *tensors = (
            ctx.saved_tensors
        )
        gating, size = ctx.cell.gating(tensors), weight_hh.shape[1]
        of_cell, of_hidden, through, f = _slopes(
            act, squashed, torch.cat([c0[None], cells[:-1]]), ctx.cell.capped
        )
        grads = torch.empty_like(act)
        grad_inputs = torch.empty_like(inputs) if weight_ih is not None else grads
        mixed = None if weight_ih is None else products_with(weight_ih.t(), len(act))
        recurrent = products_with(weight_hh.t(), len(act))
        dh, dc = torch.zeros_like(h0), grad_c.clone()
        for t in reversed(range(len(act))):
            grad, dx = grads[t], grad_inputs[t]
            dh += grad_outputs[t]
            dc.addcmul_(dh, through[t])
            torch.mul(of_cell[t], dc[:, None], out=grad[:, : 3 * size].unflatten(1, (3, size)))
            torch.mul(dh, of_hidden[t], out=grad[:, 3 * size :])
            dc *= f[t]
            recurrent.write(grad, dh)
            if mixed is not None:
                mixed.write(grad, dx)
            gating.step_back(t, dx, dh)
            if mask is not None:
                dh *= mask[t]
        entering = torch.cat([h0[None], outputs[:-1]])
        if mask is not None:
            entering *= mask
        x, h = gating.results(inputs, entering)
        of_weights = (
            None if mixed is None else deferred(grads, x),
            deferred(grads, h),
            None if mixed is None else grads.sum((0, 1)),
        )
        return None, grad_inputs, dh, dc, None, *of_weights, *gating.gradients(inputs, entering)


def _slopes(
    act: Tensor, squashed: Tensor, c_before: Tensor, capped: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the gradients of all steps need and no later step changes.

    Returns:
        d (gates i, f, g) / d c (T, B, 3, H), d gate o / d h, d c / d h and f, each (T, B, H).
    """
    i, f, g, o = act.chunk(4, 2)
    of_i, of_f = g * i * (1 - i), c_before
    if capped:  # where the cap holds, also at equality as in lamb, the gradient of i is that of 1 - f
        held = i == 1 - f
        of_i, of_f = of_i.masked_fill(held, 0), of_f - g * held
    of_cell = torch.stack((of_i, of_f * f * (1 - f), i * (1 - g * g)), 2)
    return of_cell, squashed * o * (1 - o), o * (1 - squashed * squashed), f
