"""The encoder-decoder model: context utterances → decoder states → the head's log-probabilities.

R responses · N tokens of all responses, packed · V words.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from dialog.batches import Batch
from dialog.config import DialogConfig
from dialog.decoder import Decoder, DecoderState
from dialog.encoders import FlatEncoder, HierarchicalEncoder, Memory, embed
from lm.cells.layers import uniform_parameters
from lm.heads.head import Head
from lm.heads.states import Layers


class Seq2Seq(nn.Module):
    """Shared embedding, encoder, decoder and head of a dialog model.

    Args:
        config: sizes and kinds of the parts.
        vocab_size: V, including special tokens.
        unk: id of the word that word dropout inserts.
    """

    def __init__(self, config: DialogConfig, vocab_size: int, unk: int = 1) -> None:
        super().__init__()
        self.config, self.unk = config, unk
        size, dropout = config.model.embedding_size, config.model.dropout
        self.embedding = nn.Embedding(vocab_size, size)
        encoder = HierarchicalEncoder if config.encoder.kind == "hierarchical" else FlatEncoder
        self.encoder = encoder(config.encoder, config.cell.of(config.encoder.cell), size, dropout)
        self.decoder = Decoder(config)
        for parameter in uniform_parameters(self):
            nn.init.uniform_(parameter, -config.model.init_range, config.model.init_range)
        embedding = cast(nn.Parameter, self.embedding.weight)
        hidden_size, lower_sizes = config.decoder.hidden_size, self.decoder.lower_sizes
        self.head = Head(config.head, hidden_size, vocab_size, embedding, lower_sizes)

    def encode(self, batch: Batch) -> Memory:
        """Encode the contexts of a batch. Equal utterances are encoded once."""
        return cast(Memory, self.encoder(self.embedding, batch))

    def hidden(self, batch: Batch) -> tuple[Layers, Tensor, Tensor]:
        """Teacher-forced decoding: hidden states (N, ·), targets (N,), row of every token (N,)."""
        state = self.decoder.start(self.encode(batch))
        inputs = pack_padded_sequence(batch.inputs, batch.lengths, batch_first=True)
        targets = pack_padded_sequence(batch.targets, batch.lengths, batch_first=True).data
        rows = torch.cat([torch.arange(alive) for alive in inputs.batch_sizes.tolist()]).to(targets.device)
        if self.training and self.config.model.word_dropout > 0:
            lost = torch.rand(targets.shape, device=targets.device) < self.config.model.word_dropout
            lost[: batch.inputs.shape[0]] = False  # <s> is kept, since it begins a response
            inputs = inputs._replace(data=inputs.data.masked_fill(lost, self.unk))
        words = embed(self.embedding, inputs, self.config.model.dropout, self.training)
        return self.decoder(words, state, rows), targets, rows

    def objective(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Training objective, and Σ −log P(response) of the batch in nats, both scalars."""
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

        The head's products are in bfloat16 if the ``operand`` is given that its ``output.rounded()`` returns.
        """
        hidden, after = self.decoder.step(self.embedding(tokens.to(self.embedding.weight.device)), state)
        return self.head.log_probs(hidden, component_temperature, operand), after
