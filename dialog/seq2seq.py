"""The encoder-decoder: context utterances in, decoder hidden states out. The head does the rest.

Two encoders share one interface. ``hierarchical`` (Serban et al. 2016, sizes of Zhao et al. 2017) reads
each utterance in both directions and the sequence of utterance vectors with another one;
``flat`` (Sutskever et al. 2014) reads the whole context as one token sequence. Both are told which
utterances the responder spoke.

U distinct utterances · R responses · S context utterances · T tokens of a response · H decoder size ·
C encoded context size · M positions that attention sees.
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dialog.batches import Batch
from dialog.schema import DecoderConfig, DialogConfig, EncoderConfig
from lm.cells import uniform_parameters
from lm.heads import Head
from lm.regularize import dropout
from lm.schema import CellConfig
from lm.stack import recurrent_stack


@dataclass(frozen=True)
class Memory:
    """An encoded context, one row a response."""

    summary: Tensor  # (R, C) the encoder's last state
    states: Tensor  # (R, M, C) what attention looks at
    mask: Tensor  # (R, M) true where there is something to see

    def select(self, rows: Tensor) -> "Memory":
        """The memory of some rows, repeats allowed."""
        return Memory(self.summary[rows], self.states[rows], self.mask[rows])


class HierarchicalEncoder(nn.Module):
    """Utterances first, then the conversation."""

    def __init__(self, config: EncoderConfig, cell: CellConfig, embedding_size: int, dropout: float) -> None:
        super().__init__()
        self.utterance = recurrent_stack(cell, embedding_size, config.utterance_size, bidirectional=True)
        self.context = recurrent_stack(
            cell, 2 * config.utterance_size + 2, config.context_size, config.layers
        )
        self.dropout = dropout

    def forward(self, embedding: nn.Embedding, batch: Batch) -> Memory:
        words = _embed(
            embedding, _pack(batch.utterances, batch.utterance_lengths), self.dropout, self.training
        )
        last = _hidden(self.utterance(words)[1])  # (2, U, size)
        vectors = dropout(torch.cat((last[0], last[1]), -1), self.dropout, self.training)
        heard = torch.cat(
            (vectors[batch.context], F.one_hot(batch.floors, 2).to(vectors.dtype)), -1
        )  # (R, S, ·)
        outputs, _ = pad_packed_sequence(
            self.context(_pack(heard, batch.context_lengths))[0], batch_first=True
        )
        return _memory(outputs, batch.context_lengths)


class FlatEncoder(nn.Module):
    """The context as one sequence of tokens; every token is marked with who spoke it."""

    def __init__(self, config: EncoderConfig, cell: CellConfig, embedding_size: int, dropout: float) -> None:
        super().__init__()
        self.context = recurrent_stack(cell, embedding_size, config.context_size, config.layers)
        self.floor = nn.Embedding(2, embedding_size)
        self.dropout = dropout

    def forward(self, embedding: nn.Embedding, batch: Batch) -> Memory:
        tokens, floors, lengths = join_context(batch)
        words, spoken = _pack(tokens, lengths), _pack(floors, lengths)
        marked = embedding(words.data) + self.floor(spoken.data)
        marked = dropout(marked, self.dropout, self.training)  # (tokens, E)
        outputs, _ = pad_packed_sequence(self.context(words._replace(data=marked))[0], batch_first=True)
        return _memory(outputs, lengths)


def join_context(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The context of every response as one padded sequence: tokens (R, M), floors (R, M), lengths (R,)."""
    device = batch.context.device
    exists = torch.arange(batch.context.shape[1], device=device) < batch.context_lengths.to(device)[:, None]
    sizes = batch.utterance_lengths.to(device)[batch.context] * exists  # (R, S)
    inside = torch.arange(batch.utterances.shape[1], device=device) < sizes[..., None]  # (R, S, L)
    lengths = sizes.sum(1)
    wide = torch.arange(int(lengths.max()), device=device) < lengths[:, None]  # (R, M)
    tokens = torch.zeros_like(wide, dtype=torch.long)
    floors = torch.zeros_like(tokens)
    tokens[wide] = batch.utterances[batch.context][inside]
    floors[wide] = batch.floors[..., None].expand(inside.shape)[inside]
    return tokens, floors, lengths.cpu()


def _pack(rows: Tensor, lengths: Tensor) -> PackedSequence:
    """Rows of any order, time-major and without their padding."""
    return pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)


def _embed(embedding: nn.Embedding, ids: PackedSequence, rate: float, training: bool) -> PackedSequence:
    """Word vectors of packed ids, dropped out: padding costs neither a look-up nor a random number."""
    return ids._replace(data=dropout(embedding(ids.data), rate, training))


def _hidden(state: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    """h of the last state of a GRU or an LSTM."""
    return state[0] if isinstance(state, tuple) else state


def _memory(outputs: Tensor, lengths: Tensor) -> Memory:
    """Outputs (R, M, C) with their last one picked out."""
    lengths = lengths.to(outputs.device)
    last = outputs[torch.arange(outputs.shape[0], device=outputs.device), lengths - 1]
    mask = torch.arange(outputs.shape[1], device=outputs.device) < lengths[:, None]
    return Memory(last, outputs, mask)


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
class DecoderState:
    """What decoding carries from token to token: recurrent states (layers, R, H) and the memory."""

    hidden: tuple[Tensor, ...]
    memory: Memory

    def select(self, rows: Tensor) -> "DecoderState":
        """The state of some rows, repeats allowed; beam search calls this at every step."""
        return DecoderState(tuple(h[:, rows] for h in self.hidden), self.memory.select(rows))


class Decoder(nn.Module):
    """The recurrent decoder; its hidden states go to the head."""

    def __init__(
        self, config: DecoderConfig, cell: CellConfig, embedding_size: int, context_size: int
    ) -> None:
        super().__init__()
        self.config = config
        inputs = embedding_size + (context_size if config.feed_context else 0)
        self.rnn = recurrent_stack(cell, inputs, config.hidden_size, config.layers)
        self.parts = 1 if cell.is_gru else 2  # hidden state, and the LSTM's cell state
        self.bridge = nn.Linear(context_size, self.parts * config.layers * config.hidden_size)
        self.attention: Attention | None = None
        if config.attention != "none":
            self.attention = Attention(config.attention, context_size, config.hidden_size)

    def start(self, memory: Memory) -> DecoderState:
        """The state before the first token: a linear map of the encoded context (Zhao et al. 2017)."""
        start = self.bridge(memory.summary).view(-1, self.parts, self.config.layers, self.config.hidden_size)
        return DecoderState(
            tuple(start[:, part].transpose(0, 1).contiguous() for part in range(self.parts)), memory
        )

    def forward(self, words: PackedSequence, state: DecoderState, rows: Tensor) -> PackedSequence:
        """Hidden states of whole responses.

        Args:
            words: embedded inputs, packed (N, E), longest response first.
            state: where the responses start.
            rows: which response each packed token belongs to, (N,).
        """
        inputs = self._inputs(words.data, state.memory.summary, rows)
        outputs, _ = self.rnn(words._replace(data=inputs), self._as_state(state.hidden))
        if self.attention is not None:
            padded, lengths = pad_packed_sequence(outputs, batch_first=True)
            outputs = pack_padded_sequence(self.attention(padded, state.memory), lengths, batch_first=True)
        return cast(PackedSequence, outputs)

    def step(self, words: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """One token: words (R, E) → hidden (R, H) and the next state."""
        inputs = self._inputs(words, state.memory.summary, None)[:, None]
        outputs, after = self.rnn(inputs, self._as_state(state.hidden))
        if self.attention is not None:
            outputs = self.attention(outputs, state.memory)
        return outputs[:, 0], DecoderState(after if isinstance(after, tuple) else (after,), state.memory)

    def _inputs(self, words: Tensor, summary: Tensor, rows: Tensor | None) -> Tensor:
        if not self.config.feed_context:
            return words
        return torch.cat((words, summary if rows is None else summary[rows]), -1)

    def _as_state(self, hidden: tuple[Tensor, ...]) -> tuple[Tensor, ...] | Tensor:
        return hidden if self.parts == 2 else hidden[0]


class Seq2Seq(nn.Module):
    """Shared embedding, encoder, decoder and head of a dialog model.

    Args:
        config: sizes and kinds.
        vocab_size: V, specials included.
        unk: the word that word dropout puts in.
    """

    def __init__(self, config: DialogConfig, vocab_size: int, unk: int = 1) -> None:
        super().__init__()
        self.config, self.unk = config, unk
        size, dropout = config.model.embedding_size, config.model.dropout
        self.embedding = nn.Embedding(vocab_size, size)
        encoder = HierarchicalEncoder if config.encoder.kind == "hierarchical" else FlatEncoder
        self.encoder = encoder(config.encoder, config.cell.of(config.encoder.cell), size, dropout)
        self.decoder = Decoder(
            config.decoder, config.cell.of(config.decoder.cell), size, config.encoder.context_size
        )
        for parameter in uniform_parameters(self):
            nn.init.uniform_(parameter, -config.model.init_range, config.model.init_range)
        self.head = Head(
            config.head, config.decoder.hidden_size, vocab_size, cast(nn.Parameter, self.embedding.weight)
        )

    def encode(self, batch: Batch) -> Memory:
        """The contexts of a batch; equal utterances are encoded once."""
        return cast(Memory, self.encoder(self.embedding, batch))

    def hidden(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Teacher-forced decoding without padding: hidden (N, H), targets (N,), row of every token (N,)."""
        state = self.decoder.start(self.encode(batch))
        inputs = pack_padded_sequence(batch.inputs, batch.lengths, batch_first=True)
        targets = pack_padded_sequence(batch.targets, batch.lengths, batch_first=True).data
        rows = torch.cat([torch.arange(alive) for alive in inputs.batch_sizes.tolist()]).to(targets.device)
        if self.training and self.config.model.word_dropout > 0:
            lost = torch.rand(targets.shape, device=targets.device) < self.config.model.word_dropout
            lost[: batch.inputs.shape[0]] = False  # <s> says that a response begins
            inputs = inputs._replace(data=inputs.data.masked_fill(lost, self.unk))
        words = _embed(self.embedding, inputs, self.config.model.dropout, self.training)
        hidden = self.decoder(words, state, rows).data
        return dropout(hidden, self.config.model.dropout, self.training), targets, rows

    def objective(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What training minimises, and Σ −log P(response) of the batch in nats, scalars."""
        hidden, targets, rows = self.hidden(batch)
        return self.head.objective(hidden, targets, streams=rows)

    def nll(self, batch: Batch) -> Tensor:
        """−log P of every response in nats, (R,) float64, in the order of the items."""
        hidden, targets, rows = self.hidden(batch)
        nll = self.head.nll(hidden, targets).double()
        by_row = nll.new_zeros(batch.inputs.shape[0]).index_add_(0, rows, nll)
        return torch.empty_like(by_row).index_copy_(0, batch.order, by_row)

    def start(self, batch: Batch) -> DecoderState:
        """Decoding states for the contexts of a batch, in the order of the items."""
        state = self.decoder.start(self.encode(batch))
        return state.select(torch.argsort(batch.order))

    def step(
        self,
        tokens: Tensor,
        state: DecoderState,
        component_temperature: float = 1.0,
        operand: Tensor | None = None,
    ) -> tuple[Tensor, DecoderState]:
        """One decoding step: tokens (R,) → log-probabilities (R, V) and the next state.

        The head's products are in bfloat16 if the ``operand`` is given that its ``rounded`` returns.
        """
        hidden, after = self.decoder.step(self.embedding(tokens.to(self.embedding.weight.device)), state)
        return self.head.log_probs(hidden, component_temperature, operand), after
