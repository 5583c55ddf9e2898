"""Recurrent layers.

``LSTM`` is ``torch.nn.LSTM`` with two faster paths on CPUs. Packed sequences use :mod:`lm.cells.unrolled`,
because torch's backward pass fills a zero tensor of the whole input at every time step. Single steps without
gradients use torch's cell, because torch's layer rearranges its weights in every call.

N tokens, packed time-major · R sequences · I input size · H hidden size.
"""

import logging
from collections.abc import Sequence
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lm.cells.equations import LstmEquations
from lm.cells.gating import Mogrify
from lm.cells.packing import CellState, over_packed, run_layers
from lm.cells.unrolled import Cell, CellWeights, activations, unrolled
from lm.regularize import dropout

_CELL = Cell(Mogrify, LstmEquations)  # with no rounds
_LOGGER = logging.getLogger(__name__)
FEW_TOKENS = 16  # most tokens of a window for which our loop is faster than torch's layer on CPUs


class LSTM(nn.LSTM):
    """``torch.nn.LSTM`` with fast paths for packed input with gradients and for single steps.

    Parameter names are those of torch.
    """

    def forward(  # type: ignore[override]
        self, inputs: Tensor | PackedSequence, state: CellState | None = None
    ) -> tuple[Tensor | PackedSequence, CellState]:
        """Outputs and the last (h, c), each (layers x directions, R, H), as in ``torch.nn.LSTM``."""
        data = inputs.data if isinstance(inputs, PackedSequence) else inputs
        if _stays_float32(data):
            dtype = self.all_weights[0][0].dtype
            data = data.to(dtype)
            state = None if state is None else (state[0].to(dtype), state[1].to(dtype))
            with torch.autocast("cpu", enabled=False):
                return self.forward(
                    inputs._replace(data=data) if isinstance(inputs, PackedSequence) else data, state
                )
        if data.is_cuda or self.proj_size or torch.is_autocast_enabled("cpu"):
            return super().forward(inputs, state)
        if isinstance(inputs, PackedSequence) and torch.is_grad_enabled():
            return over_packed(self._layers, inputs, state)
        is_step = self.batch_first and data.shape[1:-1] == (1,)  # never true of packed data
        if is_step and state is not None and len(state[0]) == 1 and not torch.is_grad_enabled():
            start, weights = (state[0][0], state[1][0]), tuple(self.all_weights[0])
            outputs, (h, c) = lstm_window(data.transpose(0, 1), start, weights, self.training)
            return outputs.transpose(0, 1), (h[None], c[None])
        return super().forward(inputs, state)

    def _layers(
        self, data: Tensor, sizes: Sequence[int], state: CellState | None
    ) -> tuple[Tensor, CellState]:
        suffixes = ("", "_reverse") if self.bidirectional else ("",)
        layers = [
            [partial(self._direction, f"_l{layer}{suffix}") for suffix in suffixes]
            for layer in range(self.num_layers)
        ]
        return run_layers(
            layers, data, sizes, state, partial(dropout, rate=self.dropout, training=self.training)
        )

    def _direction(
        self, name: str, data: Tensor, sizes: Sequence[int], state: CellState | None
    ) -> tuple[Tensor, CellState]:
        if state is None:
            zeros = data.new_zeros(sizes[0], self.hidden_size)
            state = (zeros, zeros)
        bias = getattr(self, f"bias_ih{name}") + getattr(self, f"bias_hh{name}") if self.bias else None
        sums = nn.functional.linear(data, getattr(self, f"weight_ih{name}"), bias)
        return unrolled(_CELL, sums, sizes, state, CellWeights(None, getattr(self, f"weight_hh{name}"), None))


class WeightDropLSTM(nn.LSTM):
    """One LSTM layer with dropout of recurrent weights in training (Merity et al. 2018, §2).

    The raw matrix is the only parameter. Every call in training draws one mask for all time steps and streams
    of the window. It runs the layer with the scaled remaining weights, so gradients reach the raw matrix.
    """

    state_bound = 1.0  # of |h| in every unit, since h = o ⊙ tanh(c)
    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor

    def __init__(self, input_size: int, hidden_size: int, weight_dropout: float = 0.0) -> None:
        super().__init__(input_size, hidden_size)
        self.weight_dropout = weight_dropout

    def forward(  # type: ignore[override]
        self, inputs: Tensor, state: CellState
    ) -> tuple[Tensor, CellState]:
        """Map inputs (T, B, I) and state (h, c), each (B, H), to outputs (T, B, H) and the last state."""
        recurrent = dropout(self.weight_hh_l0, self.weight_dropout, self.training)
        weights = (self.weight_ih_l0, recurrent, self.bias_ih_l0, self.bias_hh_l0)
        return lstm_window(inputs, state, weights, self.training)

    def gate_values(self, inputs: Tensor, state: CellState) -> Tensor:
        """Gate values of :meth:`forward`, (T, B, 4, H), in torch's order; without weight dropout."""
        steps, streams = inputs.shape[:2]
        weights = CellWeights(None, self.weight_hh_l0, None)
        with torch.no_grad(), torch.autocast(inputs.device.type, enabled=False):
            bias = self.bias_ih_l0 + self.bias_hh_l0
            data = inputs.flatten(0, 1).to(bias.dtype)
            sums = nn.functional.linear(data, self.weight_ih_l0, bias)
            state = (state[0].to(bias.dtype), state[1].to(bias.dtype))
            found = activations(_CELL, sums, [streams] * steps, state, weights)
        return found.view(steps, streams, 4, self.hidden_size)


def lstm_window(
    inputs: Tensor, state: CellState, weights: tuple[Tensor, ...], training: bool
) -> tuple[Tensor, CellState]:
    """One LSTM layer over a window, by the fastest of torch's layer and two alternatives.

    Torch's layer rearranges the weights in every call, which costs more than the rest for few tokens. On
    CPUs, a single step without gradients therefore uses torch's cell. Few tokens with gradients use the loop
    of :mod:`lm.cells.unrolled`.

    Args:
        inputs: (T, B, I).
        state: (h, c), each (B, H).
        weights: W_ih, W_hh and the two biases, as in torch.
        training: True if gradients through cuDNN are needed.

    Returns:
        Outputs (T, B, H) and the last state.
    """
    if _stays_float32(inputs):
        inputs, h, c = (part.to(weights[0].dtype) for part in (inputs, *state))
        with torch.autocast("cpu", enabled=False):
            return lstm_window(inputs, (h, c), weights, training)
    on_cpu = not (inputs.is_cuda or torch.is_autocast_enabled("cpu"))
    if on_cpu and len(inputs) == 1 and not torch.is_grad_enabled():
        h, c = torch.lstm_cell(inputs[0], state, *weights)
        return h[None], (h, c)
    few = inputs.shape[0] * inputs.shape[1] <= FEW_TOKENS
    if not (on_cpu and few and torch.is_grad_enabled()):
        start = (state[0][None], state[1][None])
        outputs, h, c = torch.lstm(inputs, start, weights, True, 1, 0.0, training, False, False)
        return outputs, (h[0], c[0])
    weight_ih, weight_hh, bias_ih, bias_hh = weights
    steps, streams, _ = inputs.shape
    sums = nn.functional.linear(inputs.flatten(0, 1), weight_ih, bias_ih + bias_hh)
    outputs, last = unrolled(_CELL, sums, [streams] * steps, state, CellWeights(None, weight_hh, None))
    return outputs.unflatten(0, (steps, streams)), last


def _stays_float32(inputs: Tensor) -> bool:
    """True if autocast must be disabled for ``inputs``."""
    return not inputs.is_cuda and torch.is_autocast_enabled("cpu") and not has_bfloat16_layer()


@cache
def has_bfloat16_layer() -> bool:
    """True if torch's LSTM runs in bfloat16 on this CPU, by a test run; logs a warning if not."""
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", torch.bfloat16):
            one = torch.zeros(1, 1, 1, requires_grad=True)
            weights = [torch.zeros(4, 1), torch.zeros(4, 1)]
            torch.lstm(one, (one, one), weights, False, 1, 0.0, True, False, False)[0].sum().backward()
    except RuntimeError:
        _LOGGER.warning("no LSTM in bfloat16 on this processor: LSTM layers stay in float32")
        return False
    return True
