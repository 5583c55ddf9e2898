"""Recurrent layers.

``LSTM`` is ``torch.nn.LSTM`` with a faster path for packed sequences. Torch's own backward pass over a
packed sequence fills a zero tensor of the whole input at every time step. Here one autograd function runs
the loop over time: the products with inputs and all weight gradients are one product each, outside the
loop, and the loop keeps only what is truly sequential.

N tokens, packed time-major · R sequences · I input size · H hidden size.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lm.regularize import dropout

State = tuple[Tensor, Tensor]  # (h, c)
Direction = Callable[[Tensor, list[int], State | None], tuple[Tensor, State]]  # of a layer over packed data
FEW = 16  # tokens of a window up to which the own loop is faster than torch's layer, on the CPU


class LSTM(nn.LSTM):
    """``torch.nn.LSTM`` to the parameter name; packed input with gradients takes the fast path."""

    def forward(  # type: ignore[override]
        self, inputs: Tensor | PackedSequence, state: State | None = None
    ) -> tuple[Tensor | PackedSequence, State]:
        """As ``torch.nn.LSTM``: outputs and the last (h, c), each (layers x directions, R, H)."""
        fast = isinstance(inputs, PackedSequence) and not inputs.data.is_cuda and torch.is_grad_enabled()
        if not fast or self.proj_size or torch.is_autocast_enabled("cpu"):
            return super().forward(inputs, state)
        assert isinstance(inputs, PackedSequence)
        return over_packed(self._layers, inputs, state)

    def _layers(self, data: Tensor, sizes: list[int], state: State | None) -> tuple[Tensor, State]:
        suffixes = ("", "_reverse") if self.bidirectional else ("",)
        final = _final_positions(sizes).to(data.device)
        layers = [
            [partial(self._direction, f"_l{layer}{suffix}", final) for suffix in suffixes]
            for layer in range(self.num_layers)
        ]
        return run_layers(
            layers, data, sizes, state, partial(dropout, rate=self.dropout, training=self.training)
        )

    def _direction(
        self, name: str, final: Tensor, data: Tensor, sizes: list[int], state: State | None
    ) -> tuple[Tensor, State]:
        out, cell = packed_lstm(self._gates(data, name), getattr(self, f"weight_hh{name}"), sizes, state)
        return out, (out[final], cell[final])

    def _gates(self, data: Tensor, name: str) -> Tensor:
        bias = getattr(self, f"bias_ih{name}") + getattr(self, f"bias_hh{name}") if self.bias else None
        return nn.functional.linear(data, getattr(self, f"weight_ih{name}"), bias)


def over_packed(run: Direction, inputs: PackedSequence, state: State | None) -> tuple[PackedSequence, State]:
    """Runs on what is packed, the states in its order, and gives states in the order of the caller."""
    if state is not None and inputs.sorted_indices is not None:
        state = (state[0][:, inputs.sorted_indices], state[1][:, inputs.sorted_indices])
    data, last = run(inputs.data, inputs.batch_sizes.tolist(), state)
    if inputs.unsorted_indices is not None:
        last = (last[0][:, inputs.unsorted_indices], last[1][:, inputs.unsorted_indices])
    return inputs._replace(data=data), last


def run_layers(
    layers: Sequence[Sequence[Direction]],
    data: Tensor,
    sizes: list[int],
    state: State | None,
    between: Callable[[Tensor], Tensor] = lambda data: data,
) -> tuple[Tensor, State]:
    """Layer after layer over packed sequences.

    Args:
        layers: of each the forward direction, and the backward one if there is one.
        data: (N, I).
        sizes: how many sequences are alive at each time step, falling.
        state: (h, c) of all layers and directions, each (layers x directions, R, H); zeros if left out.
        between: what happens to the outputs of every layer but the last.

    Returns:
        outputs (N, directions x H), and (h, c) as ``state``.
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


def _final_positions(sizes: list[int]) -> Tensor:
    """Where in the packed order each sequence ends, (R,)."""
    starts = [0, *accumulate(sizes)]
    ends = torch.empty(sizes[0], dtype=torch.long)
    for step, (size, following) in enumerate(zip(sizes, [*sizes[1:], 0], strict=True)):
        ends[following:size] = torch.arange(following, size) + starts[step]
    return ends


def _reversal(sizes: list[int]) -> Tensor:
    """The permutation that turns every sequence of a packed batch around; it is its own inverse."""
    starts = torch.tensor([0, *accumulate(sizes)][:-1])
    steps = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    rows = torch.cat([torch.arange(size) for size in sizes])
    lengths = torch.tensor(sizes)[:, None].gt(torch.arange(sizes[0])).sum(0)  # (R,)
    return starts[lengths[rows] - 1 - steps] + rows


def packed_lstm(
    gates: Tensor, weight_hh: Tensor, sizes: list[int], state: State | None = None
) -> tuple[Tensor, Tensor]:
    """One direction of one LSTM layer over packed sequences.

    Args:
        gates: W x + b of every token, (N, 4H), input, forget, cell and output gate as in torch.
        weight_hh: (4H, H).
        sizes: how many sequences are alive at each time step, falling.
        state: (h, c) before the first step, each (R, H); zeros if left out.

    Returns:
        hidden states (N, H) and cell states (N, H).
    """
    if state is None:
        zeros = gates.new_zeros(sizes[0], weight_hh.shape[1])
        state = (zeros, zeros)
    hidden, cells = _PackedLSTM.apply(gates, weight_hh, *state, sizes)  # type: ignore[no-untyped-call]
    return hidden, cells


class _PackedLSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        gates: Tensor,
        weight_hh: Tensor,
        h: Tensor,
        c: Tensor,
        sizes: list[int],
    ) -> tuple[Tensor, Tensor]:
        size = weight_hh.shape[1]
        act = gates.clone()  # becomes the activated gates
        hidden, cells, squashed = (gates.new_empty(gates.shape[0], size) for _ in range(3))
        h0, c0, end = h, c, 0
        for alive in sizes:
            now = slice(end, end := end + alive)
            a = act[now].addmm_(h[:alive], weight_hh.t())
            a[:, : 2 * size].sigmoid_()
            a[:, 2 * size : 3 * size].tanh_()
            a[:, 3 * size :].sigmoid_()
            i, f, g, o = a.chunk(4, 1)
            c = torch.mul(f, c[:alive], out=cells[now]).addcmul_(i, g)
            h = torch.mul(o, torch.tanh(c, out=squashed[now]), out=hidden[now])
        ctx.sizes = sizes  # type: ignore[attr-defined]
        ctx.save_for_backward(act, hidden, cells, squashed, weight_hh, h0, c0)
        return hidden, cells

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # type: ignore[no-untyped-def]
        ctx, grad_hidden: Tensor, grad_cells: Tensor
    ) -> tuple[Tensor | None, ...]:
        act, hidden, cells, squashed, weight_hh, h0, c0 = ctx.saved_tensors
        i, f, g, o = act.chunk(4, 1)
        h_before, c_before = shifted(hidden, h0, ctx.sizes), shifted(cells, c0, ctx.sizes)
        # everything that does not depend on later steps, for all tokens at once
        of_cell = torch.cat(
            (g * i * (1 - i), c_before * f * (1 - f), i * (1 - g * g)), 1
        )  # d gates i, f, g / d c
        of_hidden = squashed * o * (1 - o)  # d gate o / d h
        through = o * (1 - squashed * squashed)  # d c / d h
        grads = torch.empty_like(act)
        size, end = weight_hh.shape[1], act.shape[0]
        dh, dc = torch.zeros_like(h0), torch.zeros_like(c0)
        for alive in reversed(ctx.sizes):
            now = slice(end - alive, end)
            end -= alive
            into_h = dh[:alive] + grad_hidden[now]
            into_c = (dc[:alive] + grad_cells[now]).addcmul_(into_h, through[now])
            grad = grads[now]
            torch.mul(
                of_cell[now].unflatten(1, (3, size)),
                into_c[:, None],
                out=grad[:, : 3 * size].unflatten(1, (3, size)),
            )
            torch.mul(into_h, of_hidden[now], out=grad[:, 3 * size :])
            torch.mul(into_c, f[now], out=dc[:alive])
            torch.mm(grad, weight_hh, out=dh[:alive])
        return grads, grads.t() @ h_before, dh, dc, None


def shifted(states: Tensor, first: Tensor, sizes: Sequence[int]) -> Tensor:
    """The state before every token, (N, H): the first state, then the states one step earlier."""
    if sizes[0] == sizes[-1]:  # as in a window, and in one piece
        return torch.cat([first, states[: len(states) - sizes[0]]])
    pieces, start = [first], 0
    for size, following in pairwise(sizes):
        pieces.append(states[start : start + following])
        start += size
    return torch.cat(pieces)


class WeightDropLSTM(nn.LSTM):
    """One LSTM layer whose recurrent weights are dropped while it trains (Merity et al. 2018, §2).

    The raw matrix is the only parameter: every call in training draws one mask, for all time steps and
    streams of the window, and runs the layer with the scaled remainder, so gradients reach the raw matrix.
    """

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor

    def __init__(self, input_size: int, hidden_size: int, weight_dropout: float = 0.0) -> None:
        super().__init__(input_size, hidden_size)
        self.weight_dropout = weight_dropout

    def forward(  # type: ignore[override]
        self, inputs: Tensor, state: State
    ) -> tuple[Tensor, State]:
        """inputs (T, B, I) and the state (h, c), each (B, H) → outputs (T, B, H) and the last state."""
        recurrent = dropout(self.weight_hh_l0, self.weight_dropout, self.training)
        weights = (self.weight_ih_l0, recurrent, self.bias_ih_l0, self.bias_hh_l0)
        return lstm_window(inputs, state, weights, self.training)

    def gate_values(self, inputs: Tensor, state: State) -> Tensor:
        """What the gates of :meth:`forward` are, (T, B, 4, H), without dropout and gradients; as in torch."""
        with torch.no_grad():
            weights = (self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0)
            outputs, _ = lstm_window(inputs, state, weights, training=False)
            entering = torch.cat([state[0][None], outputs[:-1]])
            sums = nn.functional.linear(inputs, weights[0], weights[2] + weights[3])
            sums += entering @ self.weight_hh_l0.t()
            i, f, g, o = sums.chunk(4, 2)
            return torch.stack((i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()), 2)


def lstm_window(
    inputs: Tensor, state: State, weights: tuple[Tensor, ...], training: bool
) -> tuple[Tensor, State]:
    """One LSTM layer over a window by torch's layer, or for few tokens by the loop of :func:`packed_lstm`.

    Torch's layer rearranges the weights in every call, which for few tokens costs more than the rest.

    Args:
        inputs: (T, B, I).
        state: (h, c), each (B, H).
        weights: W_ih, W_hh and the two biases, as torch has them.
        training: whether gradients through cuDNN are wanted.

    Returns:
        outputs (T, B, H) and the last state.
    """
    few = inputs.shape[0] * inputs.shape[1] <= FEW and not inputs.is_cuda
    if not few or not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        start = (state[0][None], state[1][None])
        outputs, h, c = torch.lstm(inputs, start, weights, True, 1, 0.0, training, False, False)
        return outputs, (h[0], c[0])
    weight_ih, weight_hh, bias_ih, bias_hh = weights
    steps, streams, _ = inputs.shape
    gates = nn.functional.linear(inputs.flatten(0, 1), weight_ih, bias_ih + bias_hh)
    hidden, cells = packed_lstm(gates, weight_hh, [streams] * steps, state)
    return hidden.unflatten(0, (steps, streams)), (hidden[-streams:], cells[-streams:])
