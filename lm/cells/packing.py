"""Packed sequences of different lengths, as in torch: time-major, the longest first.

N tokens · R sequences · I input size · H hidden size.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

CellState = tuple[Tensor, Tensor]  # (h, c)
Direction = Callable[
    [Tensor, Sequence[int], CellState | None], tuple[Tensor, CellState]
]  # runs one direction of a layer on packed sequences


def over_packed(
    run: Direction, inputs: PackedSequence, state: CellState | None
) -> tuple[PackedSequence, CellState]:
    """Run on packed data, with states in its order; returns states in the caller's order."""
    if state is not None and inputs.sorted_indices is not None:
        state = (state[0][:, inputs.sorted_indices], state[1][:, inputs.sorted_indices])
    data, last = run(inputs.data, inputs.batch_sizes.tolist(), state)
    if inputs.unsorted_indices is not None:
        last = (last[0][:, inputs.unsorted_indices], last[1][:, inputs.unsorted_indices])
    return inputs._replace(data=data), last


def run_layers(
    layers: Sequence[Sequence[Direction]],
    data: Tensor,
    sizes: Sequence[int],
    state: CellState | None,
    between: Callable[[Tensor], Tensor] = lambda data: data,
) -> tuple[Tensor, CellState]:
    """Run layer after layer over packed sequences.

    Args:
        layers: the forward direction of each layer, and the backward one if any.
        data: (N, I).
        sizes: number of sequences at each time step, non-increasing.
        state: (h, c) of all layers and directions, each (layers x directions, R, H); zeros if omitted.
        between: function of the outputs of every layer except the last.

    Returns:
        Outputs (N, directions x H), and (h, c) as ``state``.
    """
    backwards = _reversal(sizes).to(data.device) if len(layers[0]) == 2 else None
    hidden: list[Tensor] = []
    cells: list[Tensor] = []
    for number, directions in enumerate(layers):
        outputs = []
        for run, order in zip(directions, (None, backwards), strict=False):
            start = None if state is None else (state[0][len(hidden)], state[1][len(hidden)])
            out, (h, c) = run(data if order is None else data[order], sizes, start)
            hidden.append(h)
            cells.append(c)
            outputs.append(out if order is None else out[order])
        data = torch.cat(outputs, 1) if len(outputs) == 2 else outputs[0]
        if number + 1 < len(layers):
            data = between(data)
    return data, (torch.stack(hidden), torch.stack(cells))


def _reversal(sizes: Sequence[int]) -> Tensor:
    """Permutation that reverses every sequence of a packed batch; it is its own inverse."""
    starts = torch.tensor([0, *accumulate(sizes)][:-1])
    steps = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    rows = torch.cat([torch.arange(size) for size in sizes])
    lengths = torch.tensor(sizes)[:, None].gt(torch.arange(sizes[0])).sum(0)  # (R,)
    return starts[lengths[rows] - 1 - steps] + rows


def padded(packed: PackedSequence) -> Tensor:
    """Sequences (R, T, ·) padded with zeros, as torch's ``pad_packed_sequence``.

    Its gradient takes one gather. That of torch's function clears a whole tensor for every length.
    """
    rows, steps = int(packed.batch_sizes[0]), len(packed.batch_sizes)
    shape = packed.data.shape[1:]
    flat = packed.data.new_zeros(rows * steps, *shape).index_copy(0, _places(packed), packed.data)
    return flat.view(rows, steps, *shape)


def packed_as(sequences: Tensor, packed: PackedSequence) -> PackedSequence:
    """Pack sequences (R, T, ·) in the order of ``packed``, the inverse of :func:`padded`."""
    return packed._replace(data=sequences.flatten(0, 1).index_select(0, _places(packed)))


def _places(packed: PackedSequence) -> Tensor:
    """Position of every token in padded sequences, (N,): its sequence times T plus its step."""
    sizes = packed.batch_sizes
    steps = torch.arange(len(sizes)).repeat_interleave(sizes)
    rows = torch.arange(len(steps)) - (sizes.cumsum(0) - sizes)[steps]
    rows, steps = rows.to(packed.data.device), steps.to(packed.data.device)
    if packed.sorted_indices is not None:
        rows = packed.sorted_indices[rows]
    return rows * len(sizes) + steps


def shifted(states: Tensor, first: Tensor, sizes: Sequence[int]) -> Tensor:
    """State before every token, (N, H): the first state, then the states one step earlier."""
    if sizes[0] == sizes[-1]:  # a window, in one piece
        return torch.cat([first, states[: len(states) - sizes[0]]])
    pieces, start = [first], 0
    for size, following in pairwise(sizes):
        pieces.append(states[start : start + following])
        start += size
    return torch.cat(pieces)


def rows_of(tensor: Tensor | None, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Views of the rows of every step of a packed tensor (N, ·); empty for None."""
    return () if tensor is None else tensor.split(list(sizes))
