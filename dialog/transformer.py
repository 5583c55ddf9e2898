"""Transformer encoder and decoder: the decoder attends to all tokens of the context (Vaswani et al. 2017).

R responses · T tokens of a response · M attended positions · E embedding size · C encoded context size ·
H decoder size.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dialog.batches import Batch
from dialog.config import DialogConfig
from dialog.decoder import Decoder
from dialog.encoders import Encoder, Memory, Workload, join_context, memory_of_words
from lm.heads.states import Layers
from lm.regularize import dropout
from lm.trunks.attention import AttentionMask, KeysValues, added, select_rows, tokens_in, turns
from lm.trunks.blocks import BlockStack, Heard

# On a CPU, where padding costs as much as tokens, neighbours in order of length have little padding.
# An update of a small model took .58 s with all rows together, .45 s with 12, and .47 s with 6.
ROWS_TOGETHER = 12


class TransformerEncoder(Encoder):
    """Reads the context as one token sequence, in both directions; every token is marked with its floor."""

    def __init__(self, config: DialogConfig) -> None:
        super().__init__()
        size, encoder = config.model.embedding_size, config.encoder
        self.dropout, self.word_size = config.model.dropout, encoder.context_size
        self.stack = BlockStack(config.transformer, size, encoder.context_size, encoder.layers, self.dropout)
        self.floor = nn.Embedding(2, size)

    def activations(self, work: Workload) -> int:
        each = 2 * self.floor.embedding_dim + self.stack.floats(1)
        return round(work.responses * work.joined * each)

    def forward(self, embedding: nn.Embedding, batch: Batch) -> Memory:
        tokens, floors, lengths, _ = join_context(batch)
        together = _together(tokens.device, len(tokens))
        order = lengths.argsort(descending=True, stable=True)
        outputs = []
        for rows in order.split(together):
            longest = int(lengths[rows[0]])
            read = self._read(embedding, tokens[rows, :longest], floors[rows, :longest], lengths[rows])
            outputs.append(F.pad(read, (0, 0, 0, tokens.shape[1] - longest)))
        return memory_of_words(torch.cat(outputs)[order.argsort()], tokens, lengths)

    def _read(self, embedding: nn.Embedding, tokens: Tensor, floors: Tensor, lengths: Tensor) -> Tensor:
        """Outputs (R, M, C) of rows of joined contexts (R, M)."""
        words = dropout(embedding(tokens) + self.floor(floors), self.dropout, self.training)
        exists = torch.arange(tokens.shape[1], device=tokens.device) < lengths.to(tokens.device)[:, None]
        by = _turns(self.stack, 0, tokens.shape[1], words)
        visible = added(exists[:, None, None], words)
        read: Tensor = self.stack(words.transpose(0, 1), by, visible).outputs
        return read.transpose(0, 1)


@dataclass(frozen=True)
class TransformerDecoderState:
    """Keys and values of the tokens read so far, and those of the memory."""

    past: tuple[KeysValues, ...]  # of each block (R, G, T, d); none before the first token
    memory: tuple[KeysValues, ...]  # of each block (R, G, M, d)
    mask: Tensor  # (R, M) false at padding

    @property
    def steps(self) -> int:
        """Number of tokens read."""
        return tokens_in(self.past)

    def select(self, rows: Tensor) -> "TransformerDecoderState":
        past, memory = (select_rows(layers, rows) for layers in (self.past, self.memory))
        return TransformerDecoderState(past, memory, self.mask[rows])

    def split(self, rows: int) -> Iterator["TransformerDecoderState"]:
        """States of at most ``rows`` rows each, of a state before the first token."""
        memory = (zip(keys.split(rows), values.split(rows), strict=True) for keys, values in self.memory)
        for mask, *layers in zip(self.mask.split(rows), *memory, strict=True):
            yield TransformerDecoderState((), tuple(layers), mask)


class TransformerDecoder(Decoder[TransformerDecoderState]):
    """Blocks of causal attention, attention to the memory and feed-forward parts."""

    def __init__(self, config: DialogConfig) -> None:
        super().__init__()
        decoder, self.dropout = config.decoder, config.model.dropout
        self.size, self.lower_sizes = decoder.hidden_size, (decoder.hidden_size,) * decoder.layers
        self.stack = BlockStack(
            config.transformer,
            config.model.embedding_size,
            self.size,
            decoder.layers,
            self.dropout,
            memory_size=config.encoder.context_size,
        )
        self._lower = config.head.lower_layers
        self._embedding_size = config.model.embedding_size

    def activations(self, work: Workload, positions: int) -> int:
        each = 2 * self._embedding_size + self.stack.floats(1, positions / work.words)
        return round(work.responses * work.words * each)

    def start(self, memory: Memory) -> TransformerDecoderState:
        return TransformerDecoderState((), self.stack.remember(memory.states), memory.mask)

    def forward(self, words: PackedSequence, state: TransformerDecoderState, rows: Tensor) -> Layers:
        padded, lengths = pad_packed_sequence(words)  # the longest first
        read, together = [], _together(padded.device, len(lengths))
        for inputs, lengths_of_part, part in zip(
            padded.split(together, 1), lengths.split(together), state.split(together), strict=True
        ):
            hidden, _ = self._run(inputs[: int(lengths_of_part[0])], part, AttentionMask(causal=True))
            read.append(hidden.map(lambda states: F.pad(states, (0, 0, 0, 0, 0, len(padded) - len(states)))))
        joined = (
            torch.cat(layer, 1) for layer in zip(*((each.last, *each.lower) for each in read), strict=True)
        )
        last, *lower = (pack_padded_sequence(states, lengths).data for states in joined)
        return Layers(last, tuple(lower))

    def step(self, words: Tensor, state: TransformerDecoderState) -> tuple[Layers, TransformerDecoderState]:
        hidden, past = self._run(words[None], state, AttentionMask())
        return hidden.map(lambda states: states[0]), replace(state, past=past)

    def _run(
        self, words: Tensor, state: TransformerDecoderState, visible: AttentionMask
    ) -> tuple[Layers, tuple[KeysValues, ...]]:
        """Hidden states (T, R, ·) of embedded inputs (T, R, E), and all keys and values."""
        by = _turns(self.stack, state.steps, len(words), words)
        heard = Heard(state.memory, added(state.mask[:, None, None], words))
        read = self.stack(words, by, visible, state.past, heard)
        last = dropout(read.outputs, self.dropout, self.training)
        return Layers(last, read.lower[: self._lower]), read.known


def _together(device: torch.device, rows: int) -> int:
    """Number of rows that are read together."""
    return ROWS_TOGETHER if device.type == "cpu" else rows


def _turns(stack: BlockStack, start: int, steps: int, like: Tensor) -> Tensor:
    head_size = stack.size // stack.config.heads
    return turns(torch.tensor([start]), steps, stack.config, like, head_size)
