"""The encoder-decoder model: context utterances → decoder states → the head's log-probabilities.

R responses · N tokens of all responses, packed · V words.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from dialog.batches import Batch
from dialog.causal import CausalContext, CausalDecoder
from dialog.config import DialogConfig
from dialog.decoder import AnyDecoder
from dialog.decoding.steps import StepFunction
from dialog.encoder_decoder import PretrainedDecoder, PretrainedEncoder
from dialog.encoders import Encoder, FlatEncoder, HierarchicalEncoder, Memory, embed
from dialog.recurrent_decoder import RecurrentDecoder
from dialog.transformer import TransformerDecoder, TransformerEncoder
from lm.cells.layers import uniform_parameters
from lm.errors import DataError
from lm.heads.cpr import SourceWords
from lm.heads.head import Head
from lm.heads.output_layer import words_before
from lm.heads.states import Layers
from lm.huggingface.architecture import Architecture, read_architecture
from lm.huggingface.starting import start_pretrained
from lm.trunks.blocks import BlockStack
from lm.trunks.names import pretrained_path
from lm.trunks.trunk import RowState


@dataclass(frozen=True)
class SourcedState:
    """A state of decoding, and the words that are answered."""

    decoder: RowState
    source: SourceWords

    def select(self, rows: Tensor) -> "SourcedState":
        return SourcedState(self.decoder.select(rows), self.source.select(rows))


class Seq2Seq(nn.Module):
    """Shared embedding, encoder, decoder and head of a dialog model.

    Args:
        config: sizes and kinds of the parts.
        vocab_size: V, including special tokens.
        unk: id of the word that word dropout inserts.
        found: architecture of a pretrained trunk; None = that of the folder that ``config`` names.
    """

    def __init__(
        self, config: DialogConfig, vocab_size: int, unk: int = 1, found: Architecture | None = None
    ) -> None:
        super().__init__()
        self.config, self.unk = config, unk
        self.encoder: Encoder
        self.decoder: AnyDecoder
        if path := pretrained_path(config.model.trunk):
            found = found or read_architecture(path, dialog=True)
            self.embedding, self.encoder, self.decoder = _pretrained_parts(config, found, vocab_size)
        else:
            self.embedding = nn.Embedding(vocab_size, config.model.embedding_size)
            self.encoder = _encoder(config)
            transforms = config.decoder.kind == "transformer"
            self.decoder = TransformerDecoder(config) if transforms else RecurrentDecoder(config)
            for parameter in uniform_parameters(self, BlockStack):
                nn.init.uniform_(parameter, -config.model.init_range, config.model.init_range)
        embedding = cast(nn.Parameter, self.embedding.weight)
        sizes = (self.decoder.lower_sizes, self.encoder.word_size)
        self.head = Head(config.head, self.decoder.size, vocab_size, embedding, *sizes)

    def encode(self, batch: Batch) -> Memory:
        """Encode the contexts of a batch. Equal utterances are encoded once."""
        return cast(Memory, self.encoder(self.embedding, batch))

    def source_words(self, memory: Memory) -> SourceWords | None:
        """The words of the contexts in the form that the head reads; None if it reads none."""
        if self.head.source_reader is None or memory.words is None:
            return None
        return cast(SourceWords, self.head.source_reader(*memory.words))

    def begin(self, memory: Memory, source: SourceWords | None) -> RowState:
        """Decoding states of encoded contexts, in the order of the rows."""
        state = cast(RowState, self.decoder.start(memory))
        return state if source is None else SourcedState(state, source)

    def hidden(self, batch: Batch) -> tuple[Layers, Tensor, Tensor]:
        """Teacher-forced decoding: hidden states (N, ·), targets (N,), row of every token (N,)."""
        memory = self.encode(batch)
        inputs = pack_padded_sequence(batch.inputs, batch.lengths, batch_first=True)
        targets = pack_padded_sequence(batch.targets, batch.lengths, batch_first=True).data
        rows = torch.cat([torch.arange(alive) for alive in inputs.batch_sizes.tolist()]).to(targets.device)
        if self.training and self.config.model.word_dropout > 0:
            lost = torch.rand(targets.shape, device=targets.device) < self.config.model.word_dropout
            lost[: batch.inputs.shape[0]] = False  # <s> is kept, since it begins a response
            inputs = inputs._replace(data=inputs.data.masked_fill(lost, self.unk))
        words = embed(self.embedding, inputs, self.config.model.dropout, self.training)
        read = self.decoder(words, self.decoder.start(memory), rows)
        if (source := self.source_words(memory)) is not None:
            read = read._replace(source=source.select(rows))
        return read, targets, rows

    def objective(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Training objective, and Σ −log P(response) of the batch in nats, both scalars."""
        hidden, targets, rows = self.hidden(batch)
        repeated: Tensor | None = None
        if self.config.head.unlikelihood:
            words = words_before(batch.targets)
            repeated = pack_padded_sequence(words, batch.lengths, batch_first=True).data
        present = pack_padded_sequence(batch.inputs, batch.lengths, batch_first=True).data
        return self.head.objective(hidden, targets, streams=rows, repeated=repeated, present=present)

    def token_nll(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """−log P of every token in nats, (N,) float64, and its row, (N,)."""
        hidden, targets, rows = self.hidden(batch)
        return self.head.nll(hidden, targets).double(), rows

    def nll(self, batch: Batch) -> Tensor:
        """−log P of every response in nats, (R,) float64, in the order of the items."""
        return by_item(*self.token_nll(batch), batch)

    def start(self, batch: Batch) -> RowState:
        """Decoding states for the contexts of a batch, in the order of the items."""
        memory = self.encode(batch)
        return self.begin(memory, self.source_words(memory)).select(torch.argsort(batch.order))

    def step(
        self,
        tokens: Tensor,
        state: RowState,
        component_temperature: float = 1.0,
        operand: Tensor | None = None,
    ) -> tuple[Tensor, RowState]:
        """One decoding step: tokens (R,) → log-probabilities (R, V) and the next state.

        The head's products are in bfloat16 if the ``operand`` is given that its ``output.rounded()`` returns.
        """
        hidden, after = self._decoded(tokens, state)
        return self.head.log_probs(hidden, component_temperature, operand), after

    def stepper(self, component_temperature: float, bf16: bool) -> StepFunction[RowState]:
        """:meth:`step` with these options. ``bf16`` rounds the output matrix once, now."""
        operand = self.head.output.rounded() if bf16 else None
        return partial(self.step, component_temperature=component_temperature, operand=operand)

    def component_step(self, tokens: Tensor, state: RowState) -> tuple[Tensor, RowState]:
        """:meth:`step` by components: log π_k + log p_k, (R, K, V)."""
        hidden, after = self._decoded(tokens, state)
        return self.head.component_log_probs(hidden), after

    def _decoded(self, tokens: Tensor, state: RowState) -> tuple[Layers, RowState]:
        words = self.embedding(tokens.to(self.embedding.weight.device))
        if not isinstance(state, SourcedState):
            return self.decoder.step(words, state)
        hidden, after = self.decoder.step(words, state.decoder)
        return hidden._replace(source=state.source), replace(state, decoder=after)


def by_item(nll: Tensor, rows: Tensor, batch: Batch) -> Tensor:
    """Sums of values of tokens (N,) by response, (R,), in the order of the items."""
    by_row = nll.new_zeros(batch.inputs.shape[0]).index_add_(0, rows, nll)
    return torch.empty_like(by_row).index_copy_(0, batch.order, by_row)


def _encoder(config: DialogConfig) -> Encoder:
    if config.encoder.kind == "transformer":
        return TransformerEncoder(config)
    sizes = (config.encoder, config.cell.of(config.encoder.cell), config.model.embedding_size)
    if config.encoder.kind == "flat":
        return FlatEncoder(*sizes, config.model.dropout)
    return HierarchicalEncoder(*sizes, config.model.dropout, words=config.head.source != "none")


def _pretrained_parts(
    config: DialogConfig, found: Architecture, vocab_size: int
) -> tuple[nn.Embedding, Encoder, AnyDecoder]:
    """Embedding, encoder and decoder of a model on a pretrained trunk, with random weights.

    DataError if the vocabulary lacks words of the pretrained model.
    """
    if vocab_size < found.words:
        raise DataError(
            f"the vocabulary has {vocab_size:,} tokens, but the model of model.trunk has {found.words:,};"
            " use the tokenizer of its folder"
        )
    embedding = nn.Embedding(vocab_size, found.embedding_size)
    if found.start is None:
        context = CausalContext(found.embedding_size, config.model.dropout)
        return embedding, context, CausalDecoder(config, found)
    from lm.huggingface.encoder_decoder import encoder_decoder  # loads transformers

    pair = encoder_decoder(found, config.head.lower_layers, config.model.recompute)
    return embedding, PretrainedEncoder(config, found, pair), PretrainedDecoder(config, found, pair)


def start_dialog(
    config: DialogConfig, embedding: nn.Embedding, decoder: AnyDecoder, head: Head
) -> str | None:
    """Load the weights of a pretrained trunk. Return their hash, None for a model without one."""
    network = decoder.trunk if isinstance(decoder, CausalDecoder) else getattr(decoder, "pair", None)
    return None if network is None else start_pretrained(config, network, embedding, head)
