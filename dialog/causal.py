"""A pretrained causal language model instead of encoder and decoder: the turns are one stream.

::

    <s> <d> </s> how are you ? </s> fine . </s>  <s> and you ? </s>
    context, marked with its speakers            response, on which alone the loss is

R responses · M tokens of a context · T tokens of a response · E embedding size · H hidden size.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dialog.batches import Batch
from dialog.config import DialogConfig
from dialog.decoder import Decoder
from dialog.encoders import Encoder, Memory, Workload, join_context
from lm.errors import ConfigError, DataError
from lm.heads.states import Layers
from lm.huggingface.architecture import Architecture
from lm.regularize import dropout
from lm.trunks.cache import CacheState
from lm.trunks.trunk import TrunkOutputs, trains


class CausalContext(Encoder):
    """Word vectors of the context as one sequence, which the decoder reads.

    Only the first utterance keeps its ``<s>``. The mark of the responder's own utterances begins as zero, so
    that the network first reads what it was trained on. Other utterances have none.
    """

    def __init__(self, size: int, rate: float) -> None:
        super().__init__()
        self.floor = nn.Embedding(2, size, padding_idx=0)  # vector 0 stays zero
        self.dropout = rate
        nn.init.zeros_(self.floor.weight)

    def activations(self, work: Workload) -> int:
        return work.responses * work.joined * 2 * self.floor.embedding_dim

    def forward(self, embedding: nn.Embedding, batch: Batch) -> Memory:
        tokens, floors, kept = stream(batch)
        words = dropout(embedding(tokens) + self.floor(floors), self.dropout, self.training)
        return Memory(words[:, -1], words, kept)


def stream(batch: Batch, *, begun: bool = True, together: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Contexts as sequences: tokens (R, M), floors (R, M), and false at padding (R, M).

    Only the first utterance keeps its ``<s>``, and only if ``begun``. The sequences end ``together``, or else
    begin together.
    """
    tokens, floors, lengths, _ = join_context(batch)
    places = torch.arange(tokens.shape[1], device=tokens.device)
    marked = not begun or batch.context.shape[1] > 1  # unlike a prompt, which is a single utterance
    begins = (tokens == batch.utterances[0, 0]) & (places >= begun) & marked  # <s>, or all except the first
    kept = (places < lengths.to(tokens.device)[:, None]) & ~begins
    longest = int(kept.sum(1).max())
    order = torch.argsort(kept.long(), dim=1, descending=not together, stable=True)
    order = order[:, -longest:] if together else order[:, :longest]
    return tokens.gather(1, order), floors.gather(1, order), kept.gather(1, order)


class CausalDecoder(Decoder[CacheState]):
    """A pretrained network that continues the stream of the context.

    Its state has the keys and values of the context and of the tokens read so far.

    ConfigError if the longest stream has more tokens than the network has positions.
    """

    def __init__(self, config: DialogConfig, found: Architecture) -> None:
        super().__init__()
        data, self.dropout = config.data, config.model.dropout
        span = data.context * data.max_tokens + data.max_response
        if found.positions and span > found.positions:
            raise ConfigError(
                f"data.context = {data.context}: its utterances and a response have up to {span:,} tokens,"
                f" but model.trunk reads at most {found.positions:,}; lower data.context or data.max_tokens"
            )
        from lm.huggingface.trunk import PretrainedTrunk  # loads transformers

        self.trunk = PretrainedTrunk(found, span, config.head.lower_layers, config.model.recompute)
        self.size, self.lower_sizes = self.trunk.size, self.trunk.lower_sizes

    def activations(self, work: Workload, positions: int) -> int:
        trunk = self.trunk
        return trunk.activations(trunk.span, work.responses, work.device) if trains(self) else 0

    def start(self, memory: Memory) -> CacheState:
        return self.begin(memory.states, memory.mask)[1]

    def begin(self, words: Tensor, kept: Tensor) -> tuple[Layers, CacheState]:
        """Read contexts (R, M, E) that end together; ``kept`` (R, M) is false at padding before them.

        Returns hidden states (M, R, ·) and the state after them.
        """
        self._require_room(words.shape[1])
        return self._found(self.trunk.begin(words.transpose(0, 1), kept.sum(1)))

    def forward(self, words: PackedSequence, state: CacheState, rows: Tensor) -> Layers:
        padded, lengths = pad_packed_sequence(words)
        hidden, _ = self.read(padded, state)
        return hidden.map(lambda states: pack_padded_sequence(states, lengths).data)

    def step(self, words: Tensor, state: CacheState) -> tuple[Layers, CacheState]:
        hidden, after = self.read(words[None], state)
        return hidden.map(lambda states: states[0]), after

    def read(self, words: Tensor, state: CacheState) -> tuple[Layers, CacheState]:
        """Hidden states (T, R, ·) of embedded inputs (T, R, E), and the state after them.

        DataError if the trunk has no room left.
        """
        # a length is 0 only where a pretrained trunk reached its span and began anew: no context is empty
        seen = int(state.lengths.max()) if bool(state.lengths.all()) else self.trunk.span
        self._require_room(seen + len(words))
        return self._found(self.trunk(words, state))

    def _found(self, read: TrunkOutputs[CacheState]) -> tuple[Layers, CacheState]:
        last = dropout(read.outputs, self.dropout, self.training)
        return Layers(last, read.lower), read.state

    def _require_room(self, tokens: int) -> None:
        if tokens > self.trunk.span:
            raise DataError(
                f"context and response have more than {self.trunk.span:,} tokens; raise data.max_response, or"
                " lower decode.max_length"
            )
