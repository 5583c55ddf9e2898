"""The recurrent decoder, with or without attention over the memory.

R responses · T tokens of a response · N tokens, packed · E embedding size · H decoder size · C encoded
context size · M attended positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from dialog.config import DialogConfig
from dialog.decoder import Decoder
from dialog.encoders import Memory, Workload
from lm.cells.packing import packed_as, padded
from lm.cells.stack import recurrent_stack
from lm.heads.states import Layers
from lm.regularize import dropout

SequenceT = TypeVar("SequenceT", Tensor, PackedSequence)


class Attention(nn.Module):
    """Dot-product (Luong et al. 2015) or additive (Bahdanau et al. 2015) attention, joined after the cell."""

    def __init__(self, kind: str, context_size: int, hidden_size: int) -> None:
        super().__init__()
        self.key = nn.Linear(context_size, hidden_size, bias=False)
        self.query = nn.Linear(hidden_size, hidden_size) if kind == "additive" else None
        self.energy = nn.Linear(hidden_size, 1, bias=False) if kind == "additive" else None
        self.join = nn.Linear(hidden_size + context_size, hidden_size)

    def forward(self, hidden: Tensor, memory: Memory) -> Tensor:
        """hidden (R, T, H) → (R, T, H)."""
        keys = self.key(memory.states)  # (R, M, H)
        if self.query is None or self.energy is None:
            scores = hidden @ keys.transpose(1, 2)  # (R, T, M)
        else:
            scores = self.energy(torch.tanh(keys[:, None] + self.query(hidden)[:, :, None])).squeeze(-1)
        share = scores.masked_fill(~memory.mask[:, None], -torch.inf).softmax(-1)
        return torch.tanh(self.join(torch.cat((hidden, share @ memory.states), -1)))


@dataclass(frozen=True)
class RecurrentDecoderState:
    """The state of every layer, and the memory."""

    layers: tuple[tuple[Tensor, ...], ...]  # of each layer h, and c if it has one, (1, R, H)
    memory: Memory

    def select(self, rows: Tensor) -> "RecurrentDecoderState":
        chosen = tuple(tuple(part[:, rows] for part in layer) for layer in self.layers)
        return RecurrentDecoderState(chosen, self.memory.select(rows))


class RecurrentDecoder(Decoder[RecurrentDecoderState]):
    """Recurrent layers. The head gets the states of the last one after attention and dropout."""

    def __init__(self, config: DialogConfig) -> None:
        super().__init__()
        self.config, self.size = config.decoder, config.decoder.hidden_size
        cell, size = config.cell.of(config.decoder.cell), self.size
        context_size = config.encoder.context_size
        inputs = config.model.embedding_size + (context_size if self.config.feed_context else 0)
        sizes = (inputs, *[size] * self.config.layers)
        self.lower_sizes = sizes[-2::-1]
        self.lower, self.dropout = config.head.lower_layers, config.model.dropout
        self.layers = nn.ModuleList(recurrent_stack(cell, of, to) for of, to in pairwise(sizes))
        self.parts = 1 if cell.is_gru else 2  # hidden state, and the LSTM's cell state
        self.bridge = nn.Linear(context_size, self.parts * self.config.layers * size)
        self.attention: Attention | None = None
        if self.config.attention != "none":
            self.attention = Attention(self.config.attention, context_size, size)
        self._by_token = 2 * inputs + (cell.floats * self.config.layers + 1) * size
        self._context_size = context_size

    def activations(self, work: Workload, positions: int) -> int:
        by_token = self._by_token
        if self.attention:
            width = self.size if self.config.attention == "additive" else 1
            by_token += positions * (2 + 2 * width) + self._context_size + 2 * self.size
        return work.responses * work.words * by_token

    def start(self, memory: Memory) -> RecurrentDecoderState:
        """State before the first token: a linear map of the encoded context (Zhao et al. 2017)."""
        start = self.bridge(memory.summary).view(-1, self.parts, self.config.layers, self.config.hidden_size)
        layers = (
            tuple(start[None, :, part, layer].contiguous() for part in range(self.parts))
            for layer in range(self.config.layers)
        )
        return RecurrentDecoderState(tuple(layers), memory)

    def forward(self, words: PackedSequence, state: RecurrentDecoderState, rows: Tensor) -> Layers:
        inputs = words._replace(data=self._inputs(words.data, state.memory.summary, rows))
        outputs, lower, _ = self._run(inputs, state)
        if self.attention is not None:
            outputs = packed_as(self.attention(padded(outputs), state.memory), outputs)
        return self._for_head(outputs.data, [one.data for one in lower])

    def step(self, words: Tensor, state: RecurrentDecoderState) -> tuple[Layers, RecurrentDecoderState]:
        inputs = self._inputs(words, state.memory.summary, None)[:, None]
        outputs, lower, layers = self._run(inputs, state)
        if self.attention is not None:
            outputs = self.attention(outputs, state.memory)
        hidden = self._for_head(outputs, lower).map(lambda states: states[:, 0])
        return hidden, RecurrentDecoderState(layers, state.memory)

    def _run(
        self, inputs: SequenceT, state: RecurrentDecoderState
    ) -> tuple[SequenceT, list[SequenceT], tuple[tuple[Tensor, ...], ...]]:
        """Outputs, inputs of the layers with the highest first, and last states of the layers."""
        read: list[SequenceT] = []
        outputs: list[SequenceT] = []
        after: list[tuple[Tensor, ...]] = []
        for layer, before in zip(self.layers, state.layers, strict=True):
            read.insert(0, inputs)
            inputs, last = layer(inputs, before if self.parts == 2 else before[0])
            outputs.append(inputs)
            after.append(last if isinstance(last, tuple) else (last,))
        return _summed(outputs) if self.config.layer_sum else inputs, read, tuple(after)

    def _for_head(self, outputs: Tensor, lower: Sequence[Tensor]) -> Layers:
        return Layers(dropout(outputs, self.dropout, self.training), tuple(lower[: self.lower]))

    def _inputs(self, words: Tensor, summary: Tensor, rows: Tensor | None) -> Tensor:
        if not self.config.feed_context:
            return words
        return torch.cat((words, summary if rows is None else summary[rows]), -1)


def _summed(layers: Sequence[SequenceT]) -> SequenceT:
    """Sum of the outputs of all layers, as in the code of Melis et al. (2020)."""
    first = layers[0]
    if isinstance(first, PackedSequence):
        return first._replace(data=sum((one.data for one in layers[1:]), first.data))
    return sum(layers[1:], first)
