"""Encoders: context utterances → memory for the decoder. Their interface, and recurrent ones.

``hierarchical`` (Serban et al. 2016, sizes of Zhao et al. 2017) encodes
each utterance with a bidirectional network, and the sequence of utterance vectors with a second network.
``flat`` (Sutskever et al. 2014) encodes the whole context as one token sequence. The input of both marks the
responder's utterances.

U distinct utterances · R responses · S context utterances · C encoded context size · M attended positions.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from dialog.batches import Batch
from dialog.config import EncoderConfig
from lm.cells.config import CellConfig
from lm.cells.packing import padded
from lm.cells.stack import recurrent_stack
from lm.regularize import dropout


class EncodedWords(NamedTuple):
    """Tokens of the contexts, also ``<s>`` and ``</s>``, in their order, and the encoder's states of them."""

    ids: Tensor  # (R, P)
    exists: Tensor  # (R, P) false at padding
    states: Tensor  # (Q, W) of different words
    places: Tensor  # (R, P) rows of ``states``


@dataclass(frozen=True)
class Memory:
    """Encoded contexts, one row per response."""

    summary: Tensor  # (R, C) the encoder's last state
    states: Tensor  # (R, M, C) states to attend to
    mask: Tensor  # (R, M) false at padding
    words: EncodedWords | None = None  # for heads that read them

    def select(self, rows: Tensor) -> "Memory":
        """Memory of some rows, which may repeat, without words."""
        return Memory(self.summary[rows], self.states[rows], self.mask[rows])


class Workload(NamedTuple):
    """Largest sizes of a shard of a training batch, for estimates of memory."""

    dialogs: int  # of which the responses are
    responses: int
    context: int  # utterances before a response
    words: int  # tokens of an utterance
    longest: int  # tokens of a response
    device: torch.device

    @property
    def joined(self) -> int:
        """Number of tokens of a context as one sequence."""
        return self.context * self.words


class Encoder(nn.Module, ABC):
    """A network that encodes contexts.

    Attributes:
        word_size: W of :class:`EncodedWords`; 0 = it has no states of words for the head.
    """

    word_size: int = 0

    @abstractmethod
    def forward(self, embedding: nn.Embedding, batch: Batch) -> Memory:
        """Encode the contexts of a batch."""

    @abstractmethod
    def activations(self, work: Workload) -> int:
        """Approximate number of numbers kept for backpropagation."""

    def positions(self, work: Workload) -> int:
        """Number of attended positions M of a memory."""
        return work.joined


class HierarchicalEncoder(Encoder):
    """Encodes each utterance, then the sequence of utterance vectors.

    Args:
        words: also hand over the words and their states, which takes some time.
    """

    def __init__(
        self,
        config: EncoderConfig,
        cell: CellConfig,
        embedding_size: int,
        dropout: float,
        words: bool = False,
    ) -> None:
        super().__init__()
        self.words = words
        self.utterance = recurrent_stack(cell, embedding_size, config.utterance_size, bidirectional=True)
        self.context = recurrent_stack(
            cell, 2 * config.utterance_size + 2, config.context_size, config.layers
        )
        self.dropout, self.word_size = dropout, 2 * config.utterance_size
        self._by_word = 2 * embedding_size + 2 * cell.floats * config.utterance_size
        self._by_utterance = self.word_size + 2 + cell.floats * config.context_size * config.layers

    def activations(self, work: Workload) -> int:
        utterances = work.responses + work.dialogs * work.context  # distinct ones: neighbours share contexts
        contexts = work.responses * work.context
        return utterances * work.words * self._by_word + contexts * self._by_utterance

    def positions(self, work: Workload) -> int:
        return work.context

    def forward(self, embedding: nn.Embedding, batch: Batch) -> Memory:
        words = embed(
            embedding, _pack(batch.utterances, batch.utterance_lengths), self.dropout, self.training
        )
        states, state = self.utterance(words)
        last = _hidden(state)  # (2, U, size)
        vectors = dropout(torch.cat((last[0], last[1]), -1), self.dropout, self.training)
        heard = torch.cat(
            (vectors[batch.context], F.one_hot(batch.floors, 2).to(vectors.dtype)), -1
        )  # (R, S, ·)
        outputs, _ = self.context(_pack(heard, batch.context_lengths))
        said = None
        if self.words:
            ids, _, lengths, places = join_context(batch)
            said = EncodedWords(ids, _exist(lengths, ids), padded(states).flatten(0, 1), places)
        return memory_of(padded(outputs), batch.context_lengths, said)


class FlatEncoder(Encoder):
    """Encodes the context as one token sequence, in which every token is marked with its floor."""

    def __init__(self, config: EncoderConfig, cell: CellConfig, embedding_size: int, dropout: float) -> None:
        super().__init__()
        self.context = recurrent_stack(cell, embedding_size, config.context_size, config.layers)
        self.floor = nn.Embedding(2, embedding_size)
        self.dropout, self.word_size = dropout, config.context_size
        self._by_word = 2 * embedding_size + cell.floats * config.context_size * config.layers

    def activations(self, work: Workload) -> int:
        return work.responses * work.joined * self._by_word

    def forward(self, embedding: nn.Embedding, batch: Batch) -> Memory:
        tokens, floors, lengths, _ = join_context(batch)
        words, spoken = _pack(tokens, lengths), _pack(floors, lengths)
        marked = embedding(words.data) + self.floor(spoken.data)
        marked = dropout(marked, self.dropout, self.training)  # (tokens, E)
        outputs, _ = self.context(words._replace(data=marked))
        return memory_of_words(padded(outputs), tokens, lengths)


def join_context(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Join each context into one padded sequence.

    Returns:
        Tokens (R, M), floors (R, M), lengths (R,), and places (R, M) of the tokens in the flattened
        ``batch.utterances``. Padding is 0.
    """
    device = batch.context.device
    exists = _exist(batch.context_lengths, batch.context)
    sizes = batch.utterance_lengths.to(device)[batch.context] * exists  # (R, S)
    inside = torch.arange(batch.utterances.shape[1], device=device) < sizes[..., None]  # (R, S, L)
    lengths = sizes.sum(1)
    wide = torch.arange(int(lengths.max()), device=device) < lengths[:, None]  # (R, M)
    tokens, floors, places = (torch.zeros_like(wide, dtype=torch.long) for _ in range(3))
    every = torch.arange(batch.utterances.numel(), device=device).view_as(batch.utterances)
    places[wide] = every[batch.context][inside]
    tokens[wide] = batch.utterances.flatten()[places[wide]]
    floors[wide] = batch.floors[..., None].expand(inside.shape)[inside]
    return tokens, floors, lengths.cpu(), places


def _pack(rows: Tensor, lengths: Tensor) -> PackedSequence:
    """Pack rows of any order: time-major, without padding."""
    return pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)


def embed(embedding: nn.Embedding, ids: PackedSequence, rate: float, training: bool) -> PackedSequence:
    """Word vectors of packed ids with dropout. Padding needs neither look-ups nor random numbers."""
    return ids._replace(data=dropout(embedding(ids.data), rate, training))


def _hidden(state: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    """h of the last state of a GRU or LSTM."""
    return state[0] if isinstance(state, tuple) else state


def memory_of(outputs: Tensor, lengths: Tensor, words: EncodedWords | None) -> Memory:
    """Memory from outputs (R, M, C), with the last output of each row as its summary."""
    rows = torch.arange(outputs.shape[0], device=outputs.device)
    last = outputs[rows, lengths.to(outputs.device) - 1]
    return Memory(last, outputs, _exist(lengths, outputs), words)


def memory_of_words(outputs: Tensor, tokens: Tensor, lengths: Tensor) -> Memory:
    """Memory from an output (R, M, C) of every token (R, M) of the contexts."""
    every = torch.arange(tokens.numel(), device=tokens.device).view_as(tokens)
    words = EncodedWords(tokens, _exist(lengths, tokens), outputs.flatten(0, 1), every)
    return memory_of(outputs, lengths, words)


def _exist(lengths: Tensor, rows: Tensor) -> Tensor:
    """Mask (R, M) of the first ``lengths`` (R,) of the rows (R, M, ...)."""
    return torch.arange(rows.shape[1], device=rows.device) < lengths.to(rows.device)[:, None]
