"""Recurrent layers: LSTM, GRU, Mogrifier and mLSTM.

T time · B streams · N tokens, packed time-major · I input size · H hidden size · k rank.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from lm.cells.config import CellConfig
from lm.cells.equations import CappedLstmEquations, Equations, GruEquations, LstmEquations
from lm.cells.gated import GatedLayer, Reading, Scale, fill_truncated, start_deviation
from lm.cells.gating import Mogrify, Multiply, Round
from lm.cells.lstm import WeightDropLSTM, lstm_window
from lm.cells.packing import CellState
from lm.cells.unrolled import Masks


class MogrifiableLayer(GatedLayer):
    """LSTM or GRU that can be mogrified; without gating and masks, torch's own layer runs it."""

    def __init__(self, sizes: tuple[int, int], equations: type[Equations], weight_dropout: float) -> None:
        super().__init__(sizes, equations, weight_dropout)
        self.gates, self.zigzag = nn.ModuleList(), True

    def mogrify(self, rounds: int = 5, rank: int = 0, biased: bool = True, zigzag: bool = True) -> Self:
        """Let input and state gate each other before every step (Melis et al. 2020); returns the layer.

        Odd rounds compute x ← 2σ(Q h + b) ⊙ x, and even rounds h ← 2σ(R x + b) ⊙ h (eqs. 1 and 2). Each round
        has its own matrices. The equations read the last x and h. The c of an LSTM is not gated.

        Args:
            rounds: number r of rounds.
            rank: rank k of Q and R as products of two matrices; 0 = full rank.
            biased: give gates biases, as in the authors' code but not in their equations.
            zigzag: True: gates read the latest x and h; False: the original ones (their §4.1).
        """
        sizes = (self.input_size, self.hidden_size)
        self.gates.extend(Gate(sizes[1 - n % 2], sizes[n % 2], rank, biased) for n in range(rounds))
        self.zigzag = zigzag
        return self

    def _reading(self, inputs: Tensor) -> Reading:
        tensors = [tensor for gate in self.gates for tensor in gate(inputs)]
        return Reading(partial(Mogrify, zigzag=self.zigzag), tensors, len(self.gates) > 0)

    def _run(
        self, inputs: Tensor, sizes: Sequence[int], state: CellState, recurrent: Tensor, masks: Masks
    ) -> tuple[Tensor, CellState]:
        is_window = sizes[0] == sizes[-1]
        is_masked = any(mask is not None for mask in masks)
        by_torch = self.equations in (LstmEquations, GruEquations)
        if self.gates or not is_window or is_masked or not by_torch:
            return super()._run(inputs, sizes, state, recurrent, masks)
        outputs, last = self._by_torch(inputs.unflatten(0, (len(sizes), sizes[0])), state, recurrent)
        return outputs.flatten(0, 1), last

    @abstractmethod
    def _by_torch(self, inputs: Tensor, state: CellState, recurrent: Tensor) -> tuple[Tensor, CellState]:
        """Run a window (T, B, I) without gating by torch's own layer."""


class GatedLSTM(MogrifiableLayer):
    """An LSTM with one bias vector.

    Args:
        input_size, hidden_size: I and H.
        cap_input_gate: use the input gate min(i, 1 - f), as in all models that Melis et al. (2020) tuned.
        weight_dropout: dropout rate of W_hh (Merity et al. 2018, §2).
    """

    def __init__(
        self, input_size: int, hidden_size: int, cap_input_gate: bool = False, weight_dropout: float = 0.0
    ) -> None:
        super().__init__((input_size, hidden_size), _lstm(cap_input_gate), weight_dropout)

    def _by_torch(self, inputs: Tensor, state: CellState, recurrent: Tensor) -> tuple[Tensor, CellState]:
        """Bit-identical to ``WeightDropLSTM``."""
        parameters = (self.weight_ih, recurrent, self.bias, torch.zeros_like(self.bias))
        return lstm_window(inputs, state, parameters, self.training)


class GatedGRU(MogrifiableLayer):
    """GRU as in torch, but with one bias each for r and z, the sum of torch's two.

    h' = (1 - z) ⊙ n + z ⊙ h with n = tanh(W_in x + b_n + r ⊙ (W_hn h + b_hn)). A mogrified GRU, proposed in
    §5 of Melis et al. (2020), reads the gated x and h throughout. From two rounds on, gates scale h by up to
    2, so h can grow.

    Args:
        input_size, hidden_size, weight_dropout: see :class:`GatedLSTM`.
    """

    inner_bias: nn.Parameter

    def __init__(self, input_size: int, hidden_size: int, weight_dropout: float = 0.0) -> None:
        super().__init__((input_size, hidden_size), GruEquations, weight_dropout)
        self.inner_bias = self._uniform(hidden_size)

    @property
    def state_bound(self) -> float:
        """1; infinite from two rounds on, the second of which scales h by up to 2."""
        return 1.0 if len(self.gates) < 2 else math.inf

    def _by_torch(self, inputs: Tensor, state: CellState, recurrent: Tensor) -> tuple[Tensor, CellState]:
        inner = nn.functional.pad(self.inner_bias, (2 * self.hidden_size, 0))
        parameters = (self.weight_ih, recurrent, self.bias, inner)
        start = state[0][None].contiguous()
        outputs, h = torch.gru(inputs, start, parameters, True, 1, 0.0, self.training, False, False)
        return outputs, (h[0], state[1])


class Gate(nn.Module):
    """Weights of one round: 2σ(up (down source) + bias) multiplies the target.

    The initialisation is that of the authors' code: normal, truncated at two standard deviations. A full
    matrix and its bias are initialised as in :meth:`GatedLayer.truncate`. Each of two factors has the
    variance (source · k)^-½ before the truncation, and their bias starts at zero.
    """

    def __init__(self, source: int, target: int, rank: int, biased: bool) -> None:
        super().__init__()
        deviation = (source * rank) ** -0.25 if rank else start_deviation(source)
        self.down = nn.Parameter(fill_truncated(torch.empty(rank, source), deviation)) if rank else None
        self.up = nn.Parameter(fill_truncated(torch.empty(target, rank or source), deviation))
        self.bias = nn.Parameter(torch.zeros(target)) if biased else None
        if self.bias is not None and not rank:
            fill_truncated(self.bias, start_deviation(target))

    def forward(self, inputs: Tensor) -> Round:
        """A round with buffers for inputs (N, ·)."""
        tokens = len(inputs)
        inner = None if self.down is None else inputs.new_empty(tokens, len(self.down))
        gate, gated = inputs.new_zeros(tokens, len(self.up)), inputs.new_empty(tokens, len(self.up))
        if self.bias is not None:
            gate.copy_(self.bias.detach())
        return Round(self.down, self.up, self.bias, inner, gate, gated)


class MLSTM(GatedLayer):
    """Multiplicative LSTM of Krause et al. (2016), as Melis et al. (2020) define it in their §4.2.

    The LSTM equations read (W_mx x) ⊙ (W_mh h) instead of h.

    Args:
        input_size, hidden_size: I and H.
        cap_input_gate: use the input gate min(i, 1 - f).
        weight_dropout: dropout rate of W_hh.
    """

    def __init__(
        self, input_size: int, hidden_size: int, cap_input_gate: bool = False, weight_dropout: float = 0.0
    ) -> None:
        super().__init__((input_size, hidden_size), _lstm(cap_input_gate), weight_dropout)
        self.weight_mx = self._uniform(hidden_size, input_size)
        self.weight_mh = self._uniform(hidden_size, hidden_size)

    def _reading(self, inputs: Tensor) -> Reading:
        factor = nn.functional.linear(inputs, self.weight_mx)
        tensors = (factor, self.weight_mh, torch.empty_like(factor), torch.empty_like(factor))
        return Reading(Multiply, tensors)


def _lstm(capped: bool) -> type[LstmEquations]:
    return CappedLstmEquations if capped else LstmEquations


Layer = WeightDropLSTM | GatedLayer


def recurrent_layer(config: CellConfig, input_size: int, hidden_size: int, weight_dropout: float) -> Layer:
    """One layer with the cell of ``config``."""
    if config.is_plain and config.kind == "lstm":
        return WeightDropLSTM(input_size, hidden_size, weight_dropout)
    return gated_layer(config, input_size, hidden_size, weight_dropout)


def gated_layer(
    config: CellConfig, input_size: int, hidden_size: int, weight_dropout: float = 0.0
) -> GatedLayer:
    """One layer with the cell of ``config``, as a :class:`GatedLayer` for every cell."""
    layer: GatedLayer
    if config.is_gru:
        layer = GatedGRU(input_size, hidden_size, weight_dropout)
    else:
        kind = MLSTM if config.kind == "mlstm" else GatedLSTM
        layer = kind(input_size, hidden_size, config.cap_input_gate, weight_dropout)
    if config.mogrifies and isinstance(layer, MogrifiableLayer):
        layer.mogrify(config.rounds, config.rank, config.gate_bias, config.zigzag)
    if config.init == "truncated":
        layer.truncate()
    if config.input_scale:
        layer.scale_inputs()
    if config.weight_rank:
        layer.factorise(config.weight_rank)
    if config.layer_norm and not config.is_gru:
        layer.normalise()
    return layer


def uniform_parameters(module: nn.Module, *others: type[nn.Module]) -> Iterator[nn.Parameter]:
    """Parameters without an own initialiser, unlike gates, scales, factors and truncated matrices.

    ``others`` are further kinds of parts with an own initialiser.
    """
    own = {
        id(parameter)
        for part in module.modules()
        if isinstance(part, (Gate, Scale, ParametrizationList, *others))
        or (isinstance(part, GatedLayer) and part.truncated)
        for parameter in part.parameters()
    }
    return (parameter for parameter in module.parameters() if id(parameter) not in own)
