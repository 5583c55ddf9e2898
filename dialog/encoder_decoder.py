"""A pretrained encoder-decoder: the context is the encoder's text, the response the decoder's.

::

    <d> </s> how are you ? </s> fine . </s>        and you ? </s>
    context, marked with its speakers              response, after the model's first token

A model whose tokenizer has ``<s>``, as BART's, reads it before the context and before the response.
A model with ``forced_bos_token_id`` reads that token before the response instead.

R responses · M tokens of a context · T tokens of a response · P tokens before a response · E embedding size ·
C encoded context size.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dialog.batches import Batch
from dialog.causal import stream
from dialog.config import DialogConfig
from dialog.decoder import Decoder
from dialog.encoders import Encoder, Memory, Workload
from lm.errors import ConfigError, DataError
from lm.heads.states import Layers
from lm.huggingface.architecture import Architecture
from lm.regularize import dropout
from lm.trunks.trunk import trains

if TYPE_CHECKING:  # loads transformers
    from lm.huggingface.encoder_decoder import EncoderDecoder, PairState


class PretrainedEncoder(Encoder):
    """The encoder of a pretrained model, which reads the context as one sequence.

    The mark of the responder's own utterances begins as zero, so that the network first reads what it was
    trained on. Other utterances have none.

    The ``summary`` of the memory has the word vectors (R, P, E) of the tokens before a response.
    """

    def __init__(self, config: DialogConfig, found: Architecture, pair: "EncoderDecoder") -> None:
        super().__init__()
        data = config.data
        longest = max(data.context * data.max_tokens, data.max_response)
        if 0 < found.positions < longest:
            raise ConfigError(
                f"data.context = {data.context}: its utterances, or a response, have up to {longest:,} tokens"
                f" and model.trunk reads at most {found.positions:,}; lower data.context or data.max_tokens"
            )
        self.network, self.dropout = pair.encoder, config.model.dropout
        self.floor = nn.Embedding(2, found.embedding_size, padding_idx=0)  # vector 0 stays zero
        self._start, self._forced, self._words = found.start, found.forced, found.words
        self._recompute = config.model.recompute
        nn.init.zeros_(self.floor.weight)

    def activations(self, work: Workload) -> int:
        size = self.floor.embedding_dim
        inputs = work.responses * work.joined * 2 * size
        if not trains(self):
            return inputs
        sizes = (work.responses, work.joined, size, work.device)
        return inputs + self.network.activations(*sizes, recompute=self._recompute)

    def forward(self, embedding: nn.Embedding, batch: Batch) -> Memory:
        begin = int(batch.utterances[0, 0])
        known = begin < self._words and begin != self._start  # <s> is a token of the pretrained model
        tokens, floors, kept = stream(batch, begun=known, together=False)
        words = dropout(embedding(tokens) + self.floor(floors), self.dropout, self.training)
        first = begin if known else None
        forced = first if self._forced is None else self._forced
        ids = [self._start] if forced is None else [self._start, forced]
        before = torch.tensor(ids, device=tokens.device)
        prompt = dropout(embedding(before.expand(len(tokens), -1)), self.dropout, self.training)
        return Memory(prompt, self.network(words, kept), kept)


@dataclass(frozen=True)
class PretrainedState:
    """The encoded context, the tokens read so far, and the word vectors of those before a response."""

    prompt: Tensor  # (R, P, E)
    pair: "PairState"

    def select(self, rows: Tensor) -> "PretrainedState":
        return PretrainedState(self.prompt[rows], self.pair.select(rows))


class PretrainedDecoder(Decoder[PretrainedState]):
    """The decoder of a pretrained model. It reads the tokens of the model instead of ``<s>``.

    ``pair`` has both networks, to load the weights of a folder.
    """

    def __init__(self, config: DialogConfig, found: Architecture, pair: "EncoderDecoder") -> None:
        super().__init__()
        self.size, self.lower_sizes = found.hidden_size, (found.hidden_size,) * found.layers
        self.pair, self.network = pair, pair.decoder
        self.dropout, self._positions = config.model.dropout, found.positions
        self._embedding_size, self._recompute = found.embedding_size, config.model.recompute

    def activations(self, work: Workload, positions: int) -> int:
        if not trains(self):
            return 0
        sizes = (work.responses, work.longest, positions, self._embedding_size, work.device)
        return self.network.activations(*sizes, recompute=self._recompute)

    def start(self, memory: Memory) -> PretrainedState:
        return PretrainedState(memory.summary, self.network.start(memory.states, memory.mask))

    def forward(self, words: PackedSequence, state: PretrainedState, rows: Tensor) -> Layers:
        padded, lengths = pad_packed_sequence(words, batch_first=True)
        before = state.prompt.shape[1] - 1
        hidden = self.network(torch.cat((state.prompt, padded[:, 1:]), 1), state.pair)
        return self._for_head(hidden).map(
            lambda states: pack_padded_sequence(states[:, before:], lengths, batch_first=True).data
        )

    def step(self, words: Tensor, state: PretrainedState) -> tuple[Layers, PretrainedState]:
        read = words[:, None] if state.pair.steps else state.prompt
        if 0 < self._positions < state.pair.steps + read.shape[1]:
            raise DataError(
                f"the response has more than the {self._positions:,} tokens that model.trunk reads; lower"
                " decode.max_length"
            )
        hidden, after = self.network.step(read, state.pair)
        last = self._for_head(hidden).map(lambda states: states[:, -1])
        return last, PretrainedState(state.prompt, after)

    def _for_head(self, hidden: Layers) -> Layers:
        return Layers(dropout(hidden.last, self.dropout, self.training), hidden.lower)
