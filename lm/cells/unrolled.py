"""Recurrent layer unrolled over time in one autograd function, for cells with gating.

The loop contains only sequential work: products with the rows of a step and elementwise operations. Every
weight gradient is one product over all tokens after the loop. Steps have no autograd nodes.

Sequences of different lengths are packed as in torch: time-major, the longest first, without padding. The
rows of a step belong to the sequences that have not ended. In a window of streams, all sequences have equal
length.

N tokens · R sequences · I input size · H hidden size · G gates and candidates.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from lm.cells.equations import Equations
from lm.cells.gating import Gating, MaybeTensors
from lm.cells.packing import CellState, rows_of, shifted


class CellWeights(NamedTuple):
    """Weights of the equations, with the rows of one gate after another as in torch."""

    inputs: Tensor | None  # (G·H, I); None if the inputs are W x + b already
    hidden: Tensor  # (G·H, H)
    bias: Tensor | None  # (G·H,); None without a bias, or if it is in the inputs
    extra: Tensor | None = None  # GRU: (H,), the bias of W_hn h; normalised: (2, G·H), gains and shifts


class Masks(NamedTuple):
    """Constant factors on h and c as each step reads them, (N, H) or (N, 1); outputs are not masked."""

    h: Tensor | None = None
    c: Tensor | None = None


UNMASKED = Masks()


class Cell(NamedTuple):
    """Types of gating and equations of a cell."""

    gating: Callable[[MaybeTensors, Sequence[int]], Gating]
    equations: type[Equations]


def unrolled(
    cell: Cell,
    inputs: Tensor,
    sizes: Sequence[int],
    state: CellState,
    weights: CellWeights,
    tensors: MaybeTensors = (),
    masks: Masks = UNMASKED,
) -> tuple[Tensor, CellState]:
    """Run one layer in one direction.

    Args:
        inputs: (N, I), or W x + b, (N, G·H), if ``weights`` has no W.
        sizes: number of sequences at each time step, non-increasing.
        state: (h, c) before the first step, each (R, H).
        tensors: weights and buffers of the gating.
        masks: masks of the state.

    Returns:
        Outputs (N, H) and (h, c) of every sequence after its last step.

    Raises:
        ValueError: there is no time step, or the state has another number of sequences than the first one.
    """
    _require_fitting(sizes, state)
    h, c = state[0].contiguous(), state[1].contiguous()
    outputs, h, c = _Unrolled.apply(  # type: ignore[no-untyped-call]
        cell, sizes, inputs.contiguous(), h, c, *masks, *weights, *tensors
    )
    return outputs, (h, c)


def activations(
    cell: Cell,
    inputs: Tensor,
    sizes: Sequence[int],
    state: CellState,
    weights: CellWeights,
    tensors: MaybeTensors = (),
    masks: Masks = UNMASKED,
) -> Tensor:
    """Gate values of :func:`unrolled` after their nonlinearities, (N, G·H); without gradients."""
    _require_fitting(sizes, state)
    with torch.no_grad():
        return _forward(cell, inputs, sizes, state, weights, tensors, masks)[0].kept[0]


def _require_fitting(sizes: Sequence[int], state: CellState) -> None:
    if not sizes:
        raise ValueError("no time step to read; give at least one")
    if any(len(part) != sizes[0] for part in state):
        rows = " and ".join(str(len(part)) for part in state)
        raise ValueError(
            f"{sizes[0]} sequences do not fit a state of {rows} sequences; give a matching state"
        )


def _forward(
    cell: Cell,
    inputs: Tensor,
    sizes: Sequence[int],
    state: CellState,
    weights: CellWeights,
    tensors: MaybeTensors,
    masks: Masks,
) -> tuple[Equations, Tensor, Tensor]:
    """Equations with filled buffers, and h and c of every sequence after its last step."""
    weight_ih, weight_hh, bias, extra = weights
    if weight_ih is None:
        act = inputs.clone()
    else:
        act = inputs.new_zeros(len(inputs), len(weight_ih))
        if bias is not None:
            act += bias
    gating = cell.gating(tensors, sizes)
    kept = cell.equations.fresh(act, weight_hh.shape[1], extra)
    equations = cell.equations(kept, weight_hh, extra, sizes)
    mixed = None if weight_ih is None else weight_ih.t()
    rows, of_h, of_c = (rows_of(one, sizes) for one in (inputs, *masks))
    h, c = state
    last_h, last_c = torch.empty_like(h), torch.empty_like(c)
    for t, (now, following) in enumerate(pairwise((*sizes, 0))):
        h, c = _first(now, h), _first(now, c)
        x, h = gating.step(t, rows[t], h * of_h[t] if of_h else h)
        if mixed is not None:
            equations.rows[0][t].addmm_(x, mixed)
        h, c = equations.step(t, h, c * of_c[t] if of_c else c)
        if following < now:
            last_h[following:now], last_c[following:now] = h[following:], c[following:]
    return equations, last_h, last_c


_WEIGHTS = len(CellWeights._fields)


class _Unrolled(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, cell: Cell, sizes: Sequence[int], inputs: Tensor, h: Tensor, c: Tensor,
        mask_h: Tensor | None, mask_c: Tensor | None, *tensors: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        weights = CellWeights(*tensors[:_WEIGHTS])  # type: ignore[arg-type]
        equations, last_h, last_c = _forward(
            cell, inputs, sizes, (h, c), weights, tensors[_WEIGHTS:], Masks(mask_h, mask_c)
        )
        ctx.cell, ctx.sizes, ctx.count = cell, sizes, len(equations.kept)
        read = (
            inputs.new_empty(0) if weights.inputs is None else inputs
        )  # needed only for W, which the inputs do not include
        ctx.save_for_backward(*equations.kept, read, h, c, mask_h, mask_c, *tensors)
        return equations.kept[1], last_h, last_c

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_outputs: Tensor, grad_h: Tensor, grad_c: Tensor):  # type: ignore[no-untyped-def]
        kept, sizes = ctx.saved_tensors[: ctx.count], ctx.sizes
        inputs, h0, c0, mask_h, mask_c, *tensors = ctx.saved_tensors[ctx.count :]
        weight_ih, weight_hh, bias, extra = tensors[:_WEIGHTS]
        gating = ctx.cell.gating(tensors[_WEIGHTS:], sizes)
        equations = ctx.cell.equations(kept, weight_hh, extra, sizes)
        entering = shifted(kept[1], h0, sizes)
        if mask_h is not None:
            entering *= mask_h
        x, h = gating.results(inputs, entering)
        equations.open(h, c0, mask_c)
        grads = equations.of_inputs
        grad_inputs = grads if weight_ih is None else torch.empty_like(inputs)
        from_outputs, into_inputs = rows_of(grad_outputs, sizes), rows_of(grad_inputs, sizes)
        of_h, of_c = rows_of(mask_h, sizes), rows_of(mask_c, sizes)
        from_inputs = () if weight_ih is None else rows_of(grads, sizes)
        all_dh, all_dc = (grad.clone(memory_format=torch.contiguous_format) for grad in (grad_h, grad_c))
        for t, now in reversed(list(enumerate(sizes))):
            dh, dc, dx = _first(now, all_dh), _first(now, all_dc), into_inputs[t]
            dh += from_outputs[t]
            equations.step_back(t, dh, dc)
            if weight_ih is not None:
                torch.mm(from_inputs[t], weight_ih, out=dx)
            gating.step_back(t, dx, dh)
            if of_h:
                dh *= of_h[t]
            if of_c:
                dc *= of_c[t]
        of_weights = (
            None if weight_ih is None else grads.t() @ x,
            equations.of_products.t() @ h,
            None if bias is None else grads.sum(0),
            equations.of_extra,
        )
        of_gating = gating.gradients(inputs, entering)
        return None, None, grad_inputs, all_dh, all_dc, None, None, *of_weights, *of_gating


def _first(count: int, rows: Tensor) -> Tensor:
    """The first rows; the tensor itself if it has no more, because views make steps of few rows slow."""
    return rows if len(rows) == count else rows[:count]
