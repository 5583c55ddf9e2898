"""Transformer encoder and decoder: the decoder attends to all tokens of the context (Vaswani et al. 2017).

R responses · T tokens of a response · M attended positions · E embedding size · C encoded context size ·
H decoder size.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dialog.batches import Batch
from dialog.config import DialogConfig
from dialog.decoder import Decoder
from dialog.encoders import Memory, join_context, memory_of
from lm.heads.states import Layers
from lm.regularize import dropout
from lm.trunks.attention import AttentionMask, KeysValues, added, turns
from lm.trunks.blocks import BlockStack, Heard


class TransformerEncoder(nn.Module):
    """Reads the context as one token sequence, in both directions; every token is marked with its floor."""

    def __init__(self, config: DialogConfig) -> None:
        super().__init__()
        size, encoder = config.model.embedding_size, config.encoder
        self.dropout = config.model.dropout
        self.stack = BlockStack(config.transformer, size, encoder.context_size, encoder.layers, self.dropout)
        self.floor = nn.Embedding(2, size)

    def forward(self, embedding: nn.Embedding, batch: Batch) -> Memory:
        tokens, floors, lengths = join_context(batch)
        words = dropout(embedding(tokens) + self.floor(floors), self.dropout, self.training)
        exists = torch.arange(tokens.shape[1], device=tokens.device) < lengths.to(tokens.device)[:, None]
        by = _turns(self.stack, 0, tokens.shape[1], words)
        visible = added(exists[:, None, None], words)
        return memory_of(self.stack(words.transpose(0, 1), by, visible).outputs.transpose(0, 1), lengths)


@dataclass(frozen=True)
class TransformerDecoderState:
    """Keys and values of the tokens read so far, and those of the memory."""

    past: tuple[KeysValues, ...]  # of each block (R, G, T, d); none before the first token
    memory: tuple[KeysValues, ...]  # of each block (R, G, M, d)
    mask: Tensor  # (R, M) false at padding

    @property
    def steps(self) -> int:
        """Number of tokens read."""
        return self.past[0][0].shape[2] if self.past else 0

    def select(self, rows: Tensor) -> "TransformerDecoderState":
        return TransformerDecoderState(_chosen(self.past, rows), _chosen(self.memory, rows), self.mask[rows])


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
        self._lower = len(config.head.lower_components)

    def start(self, memory: Memory) -> TransformerDecoderState:
        return TransformerDecoderState((), self.stack.remember(memory.states), memory.mask)

    def forward(self, words: PackedSequence, state: TransformerDecoderState, rows: Tensor) -> Layers:
        padded, lengths = pad_packed_sequence(words)
        hidden, _ = self._run(padded, state, AttentionMask(causal=True))
        return hidden.map(lambda states: pack_padded_sequence(states, lengths).data)

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


def _turns(stack: BlockStack, start: int, steps: int, like: Tensor) -> Tensor:
    head_size = stack.size // stack.config.heads
    return turns(torch.tensor([start]), steps, stack.config, like, head_size)


def _chosen(layers: tuple[KeysValues, ...], rows: Tensor) -> tuple[KeysValues, ...]:
    return tuple((keys[rows], values[rows]) for keys, values in layers)
