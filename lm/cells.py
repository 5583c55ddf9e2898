"""Recurrent layers whose cells let input and state act on each other before the LSTM equations.

T time · B streams · I input size · H hidden size · k rank.
"""

from abc import ABC, abstractmethod
from functools import partial

import torch
from torch import Tensor, nn

from lm.gating import Mogrify, Multiply, Round
from lm.recurrent import WeightDropLSTM, lstm_window
from lm.regularize import dropout
from lm.schema import CellConfig
from lm.unrolled import Cell, Weights, unrolled_lstm

State = tuple[Tensor, Tensor]


class GatedLSTM(nn.Module, ABC):
    """One layer of LSTM equations with one bias vector; what comes before them is a subclass's.

    The parameters start as those of ``torch.nn.LSTM``; in training, every call drops recurrent weights anew.
    """

    def __init__(self, sizes: tuple[int, int], cap_input_gate: bool, weight_dropout: float) -> None:
        super().__init__()
        self.input_size, self.hidden_size = sizes
        self.cap_input_gate, self.weight_dropout = cap_input_gate, weight_dropout
        self.weight_ih = self._uniform(4 * self.hidden_size, self.input_size)
        self.weight_hh = self._uniform(4 * self.hidden_size, self.hidden_size)
        self.bias = self._uniform(4 * self.hidden_size)

    def _uniform(self, *shape: int) -> nn.Parameter:
        bound = self.hidden_size**-0.5
        return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

    def forward(self, inputs: Tensor, state: State, state_mask: Tensor | None = None) -> tuple[Tensor, State]:
        """Reads one window.

        Args:
            inputs: (T, B, I), after their dropout.
            state: (h, c), each (B, H).
            state_mask: what multiplies h wherever a step reads it, before all gating: (B, H) for all steps or
                (T, B, H). Outputs and the state that is returned are not masked.

        Returns:
            outputs (T, B, H) and the last state, in the precision of the parameters, under autocast too.
        """
        with torch.autocast(inputs.device.type, enabled=False):
            recurrent = dropout(self.weight_hh, self.weight_dropout, self.training)
            return self._window(inputs.to(recurrent.dtype), state, recurrent, state_mask)

    @abstractmethod
    def _window(
        self, inputs: Tensor, state: State, recurrent: Tensor, state_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        """The same after dropout of the recurrent weights."""

    def _linear(self, inputs: Tensor) -> Tensor:
        """W x + b of the whole window at once, for cells that leave x as it is."""
        return nn.functional.linear(inputs, self.weight_ih, self.bias)


class MogrifierLSTM(GatedLSTM):
    """The Mogrifier LSTM of Melis et al. (2020): before every step, input and state gate each other.

    Odd rounds: x ← 2σ(Q h + b) ⊙ x; even rounds: h ← 2σ(R x + b) ⊙ h (eqs. 1 and 2), each with matrices of
    its own. c is not gated. With zero rounds it is the LSTM.

    Args:
        input_size, hidden_size: I and H.
        rounds: r.
        rank: k, of Q and R as products of two matrices; 0 is full rank.
        gate_bias: whether gates have biases, as the authors' code has and the equations have not.
        zigzag: gates read the latest x and h; without, the original ones (their §4.1).
        cap_input_gate: the input gate is min(i, 1 - f), as in all models that the authors tuned.
        weight_dropout: of W_hh (Merity et al. 2018, §2).
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        rounds: int = 5,
        rank: int = 0,
        gate_bias: bool = True,
        zigzag: bool = True,
        cap_input_gate: bool = False,
        weight_dropout: float = 0.0,
    ) -> None:
        super().__init__((input_size, hidden_size), cap_input_gate, weight_dropout)
        self.zigzag = zigzag
        sizes = (input_size, hidden_size)
        self.gates = nn.ModuleList(
            Gate(sizes[1 - n % 2], sizes[n % 2], rank, gate_bias) for n in range(rounds)
        )

    def _window(
        self, inputs: Tensor, state: State, recurrent: Tensor, state_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        if not self.gates:
            return self._ungated(inputs, state, recurrent, state_mask)
        tensors = [tensor for gate in self.gates for tensor in gate(inputs)]
        cell = Cell(partial(Mogrify, zigzag=self.zigzag), self.cap_input_gate)
        weights = Weights(self.weight_ih, recurrent, self.bias)
        return unrolled_lstm(cell, inputs, state, weights, tensors, state_mask)

    def _ungated(
        self, inputs: Tensor, state: State, recurrent: Tensor, state_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        """Bit for bit ``WeightDropLSTM`` where that has all it takes."""
        if self.cap_input_gate or state_mask is not None:
            cell, weights = Cell(Mogrify, self.cap_input_gate), Weights(None, recurrent, None)
            return unrolled_lstm(cell, self._linear(inputs), state, weights, (), state_mask)
        parameters = (self.weight_ih, recurrent, self.bias, torch.zeros_like(self.bias))
        return lstm_window(inputs, state, parameters, self.training)


class Gate(nn.Module):
    """The weights of one round: 2σ(up (down source) + bias) multiplies the target.

    They start as in the authors' code: the bias at zero; matrices truncated normal, a full one with variance
    1 / source, each of two factors with variance (source · k)^-½, so that their product has the same.
    """

    def __init__(self, source: int, target: int, rank: int, biased: bool) -> None:
        super().__init__()
        deviation = (source * rank) ** -0.25 if rank else source**-0.5
        self.down = nn.Parameter(_truncated(deviation, rank, source)) if rank else None
        self.up = nn.Parameter(_truncated(deviation, target, rank or source))
        self.bias = nn.Parameter(torch.zeros(target)) if biased else None

    def forward(self, inputs: Tensor) -> Round:
        """The round, with buffers for a window of inputs (T, B, ·)."""
        return Round.over(inputs, self.down, self.up, self.bias)


def _truncated(deviation: float, *shape: int) -> Tensor:
    return nn.init.trunc_normal_(torch.empty(shape), std=deviation, a=-2 * deviation, b=2 * deviation)


class MLSTM(GatedLSTM):
    """The multiplicative LSTM of Krause et al. (2016), as Melis et al. (2020) define it in their §4.2.

    The LSTM equations read (W_mx x) ⊙ (W_mh h) for h.

    Args:
        input_size, hidden_size: I and H.
        cap_input_gate: the input gate is min(i, 1 - f).
        weight_dropout: of W_hh.
    """

    def __init__(
        self, input_size: int, hidden_size: int, cap_input_gate: bool = False, weight_dropout: float = 0.0
    ) -> None:
        super().__init__((input_size, hidden_size), cap_input_gate, weight_dropout)
        self.weight_mx = self._uniform(hidden_size, input_size)
        self.weight_mh = self._uniform(hidden_size, hidden_size)

    def _window(
        self, inputs: Tensor, state: State, recurrent: Tensor, state_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        factor = nn.functional.linear(inputs, self.weight_mx)
        tensors = (factor, self.weight_mh, torch.empty_like(factor), torch.empty_like(factor))
        cell, weights = Cell(Multiply, self.cap_input_gate), Weights(None, recurrent, None)
        return unrolled_lstm(cell, self._linear(inputs), state, weights, tensors, state_mask)


Layer = WeightDropLSTM | GatedLSTM


def recurrent_layer(config: CellConfig, input_size: int, hidden_size: int, weight_dropout: float) -> Layer:
    """One layer with the cell of ``config``."""
    if config.kind == "mlstm":
        return MLSTM(input_size, hidden_size, config.cap_input_gate, weight_dropout)
    if config.kind == "lstm" and not config.cap_input_gate:
        return WeightDropLSTM(input_size, hidden_size, weight_dropout)
    return MogrifierLSTM(
        input_size,
        hidden_size,
        config.rounds if config.kind == "mogrifier" else 0,
        config.rank,
        config.gate_bias,
        config.zigzag,
        config.cap_input_gate,
        weight_dropout,
    )
