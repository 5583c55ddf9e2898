"""The recurrent trunk: a stack of recurrent layers with the dropout of AWD-LSTM (Merity et al. 2018).

T time · B streams · E size of the word vectors · H hidden size of the last layer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from lm.cells.config import CellConfig
from lm.cells.layers import Layer, gated_layer, recurrent_layer
from lm.cells.packing import CellState
from lm.regularize import DropoutMasks, dropout_mask, masked
from lm.trunks.trunk import Trunk, TrunkOutputs, TrunkState

_WORKSPACE = 18  # temporary numbers a unit and step while a layer is computed, as measured on a CPU


class RecurrentRates(NamedTuple):
    """Dropout rates of a recurrent trunk."""

    hidden: float = 0.0  # between layers
    state: float = 0.0  # of the recurrent state
    weight: float = 0.0  # of the recurrent weights


@dataclass(frozen=True)
class RecurrentState(TrunkState):
    """h and c of each layer, each (B, its hidden size)."""

    layers: tuple[CellState, ...]

    @property
    def streams(self) -> int:
        return len(self.layers[0][0])

    def select(self, rows: Tensor | slice) -> Self:
        return type(self)(tuple((h[rows], c[rows]) for h, c in self.layers))

    def replaced(self, rows: slice, new: Self) -> Self:
        def patched(old: Tensor, part: Tensor) -> Tensor:
            old = old.clone()
            old[rows] = part
            return old

        pairs = zip(self.layers, new.layers, strict=True)
        return type(self)(tuple((patched(h, n), patched(c, m)) for (h, c), (n, m) in pairs))

    def joined(self, others: Sequence[Self]) -> Self:
        every = zip(*(state.layers for state in (self, *others)), strict=True)
        return type(self)(
            tuple((torch.cat([h for h, _ in one]), torch.cat([c for _, c in one])) for one in every)
        )

    def forgetting(self, kept: Tensor) -> Self:
        factor = kept[:, None].to(self.layers[0][0])
        return type(self)(tuple((h * factor, c * factor) for h, c in self.layers))

    def detached(self) -> Self:
        return type(self)(tuple((h.detach(), c.detach()) for h, c in self.layers))

    def tensors(self) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {}
        for layer, (h, c) in enumerate(self.layers):
            named |= {f"h{layer}": h, f"c{layer}": c}
        return named


class RecurrentTrunk(nn.ModuleList, Trunk[RecurrentState]):
    """A stack of recurrent layers, which are its items.

    Args:
        cell: the cell of every layer.
        sizes: E, then the hidden size of each layer.
        rates: dropout rates.
        masks: masks of dropout between layers, shared by all steps of a window or one per step.
        resettable: True if windows may come with a mask ``keep``.
        layer_sum: True for the sum of the outputs of all layers as hidden states.
    """

    def __init__(
        self,
        cell: CellConfig,
        sizes: Sequence[int],
        rates: RecurrentRates,
        masks: DropoutMasks = "shared",
        *,
        resettable: bool = False,
        layer_sum: bool = False,
    ) -> None:
        masked_steps = rates.state > 0 or resettable
        build = gated_layer if masked_steps else recurrent_layer  # torch's own layer takes no mask
        super().__init__(build(cell, inputs, outputs, rates.weight) for inputs, outputs in pairwise(sizes))
        self.hidden_sizes, self.size, self.lower_sizes = tuple(sizes[1:]), sizes[-1], tuple(sizes[-2::-1])
        self.cell, self._words = cell, sizes[0]
        self.rates, self._masks, self._layer_sum = rates, masks, layer_sum

    def recurrent_layers(self) -> Iterator[Layer]:
        """The layers, from first to last."""
        for layer in self:
            assert isinstance(layer, Layer)
            yield layer

    @property
    def state_bound(self) -> float:
        """That of the last layer, or the sum over all layers whose outputs are summed."""
        bounds = [layer.state_bound for layer in self.recurrent_layers()]
        return sum(bounds) if self._layer_sum else bounds[-1]

    def initial_state(self, streams: int) -> RecurrentState:
        """A zero state."""
        weight = next(self.parameters())
        zeros = [weight.new_zeros(streams, size) for size in self.hidden_sizes]
        return RecurrentState(tuple((zero, zero) for zero in zeros))

    def state_from(self, tensors: dict[str, Tensor], device: torch.device) -> RecurrentState:
        layers = range(len(self))
        return RecurrentState(
            tuple((tensors[f"h{layer}"].to(device), tensors[f"c{layer}"].to(device)) for layer in layers)
        )

    def forward(
        self, words: Tensor, state: RecurrentState, keep: Tensor | None = None
    ) -> TrunkOutputs[RecurrentState]:
        outputs: list[Tensor] = []
        after: list[CellState] = []
        lower: list[Tensor] = []
        inputs = words
        for layer, before in zip(self, state.layers, strict=True):
            if outputs:
                inputs = masked(outputs[-1], self.rates.hidden, self._masks, self.training)
            lower.insert(0, inputs)
            output, last = layer(inputs, before, *self._of_steps(before[0], keep))
            outputs.append(output)
            after.append(last)
        raw = sum(outputs[1:], outputs[0]) if self._layer_sum else outputs[-1]
        return TrunkOutputs(raw, tuple(lower), RecurrentState(tuple(after)))

    def dropout_rates(self) -> tuple[float, ...]:
        return tuple(self.rates)

    def scale_dropout(self, factor: float) -> None:
        self.rates = RecurrentRates(*(factor * rate for rate in self.rates))
        for layer in self.recurrent_layers():
            layer.weight_dropout = self.rates.weight

    def activations(self, steps: int, streams: int, device: torch.device) -> int:
        kept = (self.cell.floats + 2) * sum(self.hidden_sizes)
        return steps * streams * (2 * self._words + kept + _WORKSPACE * max(self.hidden_sizes))

    def _of_steps(self, h: Tensor, keep: Tensor | None) -> tuple[Tensor | None, ...]:
        """Further arguments of a layer: none, or a dropout mask (B, H) and the mask of kept states."""
        rate = self.rates.state
        dropped = dropout_mask(h, h.shape, rate) if self.training and rate else None
        return () if dropped is None and keep is None else (dropped, keep)
