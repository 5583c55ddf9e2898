"""Layers of any recurrent cell over packed sequences, with the interface of ``torch.nn.LSTM`` and ``GRU``.

R sequences · T time · I input size · H hidden size.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lm.cells.config import CellConfig
from lm.cells.gated import GatedLayer
from lm.cells.layers import gated_layer
from lm.cells.lstm import LSTM
from lm.cells.packing import CellState, Direction, over_packed, run_layers


class Stack(nn.Module):
    """Layers with the cell of ``config``, each in one or two directions.

    As in torch, a stack of LSTM cells has the state (h, c), and a stack of GRU cells only h.
    """

    def __init__(
        self,
        config: CellConfig,
        input_size: int,
        hidden_size: int,
        layers: int = 1,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        self.is_gru = config.is_gru
        directions = 2 if bidirectional else 1
        sizes = (input_size, *[directions * hidden_size] * layers)
        self.layers = nn.ModuleList(
            nn.ModuleList(gated_layer(config, inputs, hidden_size) for _ in range(directions))
            for inputs, _ in pairwise(sizes)
        )

    def forward(
        self, inputs: Tensor | PackedSequence, state: CellState | Tensor | None = None
    ) -> tuple[Tensor | PackedSequence, CellState | Tensor]:
        """Run like a batch-first ``torch.nn.LSTM`` or ``GRU``.

        Args:
            inputs: packed, or (R, T, I).
            state: (layers x directions, R, H), for LSTM cells a pair of these; zeros if omitted.

        Returns:
            Outputs, packed or (R, T, directions x H), and the last state.
        """
        before = (state, state[..., :0]) if isinstance(state, Tensor) else state
        outputs: Tensor | PackedSequence
        if isinstance(inputs, PackedSequence):
            outputs, after = over_packed(self._run, inputs, before)
        else:
            rows, steps, _ = inputs.shape
            data, after = self._run(inputs.transpose(0, 1).flatten(0, 1), [rows] * steps, before)
            outputs = data.unflatten(0, (steps, rows)).transpose(0, 1)
        return outputs, after[0] if self.is_gru else after

    def _run(self, data: Tensor, sizes: Sequence[int], state: CellState | None) -> tuple[Tensor, CellState]:
        layers: list[list[Direction]] = [
            [cell.packed for cell in layer.children() if isinstance(cell, GatedLayer)]
            for layer in self.layers
        ]
        return run_layers(layers, data, sizes, state)


def recurrent_stack(
    config: CellConfig, input_size: int, hidden_size: int, layers: int = 1, bidirectional: bool = False
) -> nn.Module:
    """The fastest stack for a config: torch's GRU or :class:`lm.cells.lstm.LSTM` for plain cells."""
    if not config.is_plain:
        return Stack(config, input_size, hidden_size, layers, bidirectional)
    plain = nn.GRU if config.is_gru else LSTM
    return plain(input_size, hidden_size, num_layers=layers, batch_first=True, bidirectional=bidirectional)
