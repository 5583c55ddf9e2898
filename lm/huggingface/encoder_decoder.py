"""The two networks of a pretrained encoder-decoder, without its embedding and output layer.

R sequences · M positions of a context · T tokens of a response · E size of the word vectors ·
C encoded size · H hidden size · G heads of keys and values · d size of a head.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from lm.heads.states import Layers
from lm.huggingface.architecture import Architecture
from lm.huggingface.kept import kept_floats
from lm.huggingface.trunk import WindowCache, recompute_layers
from lm.trunks.attention import KeysValues, select_rows, tokens_in


@dataclass(frozen=True)
class PairState:
    """Encoded contexts, and the keys and values of the tokens of responses so far."""

    states: Tensor  # (R, M, C)
    mask: Tensor  # (R, M) false at padding
    past: tuple[KeysValues, ...] = ()  # of each layer (R, G, T, d); none before the first token
    memory: tuple[KeysValues, ...] = ()  # of each layer (R, G, M, d); none before the first token

    @property
    def steps(self) -> int:
        """Number of tokens read."""
        return tokens_in(self.past)

    def select(self, rows: Tensor) -> "PairState":
        """State of some rows, which may repeat."""
        past, memory = (select_rows(layers, rows) for layers in (self.past, self.memory))
        return PairState(self.states[rows], self.mask[rows], past, memory)


class EncoderNetwork(nn.Module):
    """Word vectors of contexts → encoded contexts."""

    network: Any

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Identity()

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Encoded contexts (R, M, C) of word vectors (R, M, E), where ``mask`` (R, M) is false at padding."""
        states: Tensor = self.network(inputs_embeds=words, attention_mask=mask.long()).last_hidden_state
        return states

    def activations(self, rows: int, steps: int, words: int, device: torch.device, *, recompute: bool) -> int:
        """Approximate number of numbers kept for backpropagation through contexts of word vectors (E)."""

        def read() -> None:
            self.network(inputs_embeds=torch.empty(rows, steps, words, requires_grad=True))

        return kept_floats(self.network, read, rows * steps, device, recompute=recompute)


class DecoderNetwork(nn.Module):
    """Word vectors of responses and encoded contexts → hidden states for the head.

    Args:
        architecture: sizes.
        lower: number of layers from the last one down of which the inputs are wanted. They are divided by
            their root mean square.
    """

    def __init__(self, architecture: Architecture, lower: int) -> None:
        super().__init__()
        self.size, self._lower, self.scale = architecture.hidden_size, lower, architecture.output_scale
        self.network: Any = nn.Identity()

    def start(self, states: Tensor, mask: Tensor) -> PairState:
        """State before the first token, after encoded contexts (R, M, C)."""
        return PairState(states, mask)

    def forward(self, words: Tensor, state: PairState) -> Layers:
        """Hidden states (R, T, H) of whole responses in word vectors (R, T, E)."""
        return self._read(words, state, None)

    def step(self, words: Tensor, state: PairState) -> tuple[Layers, PairState]:
        """Hidden states (R, T, H) of the next tokens (R, T, E), and the state after them."""
        past: Cache = WindowCache(state.past) if state.past else DynamicCache()
        memory: Cache = WindowCache(state.memory) if state.past else DynamicCache()
        hidden = self._read(words, state, EncoderDecoderCache(past, memory))
        return hidden, replace(state, past=_known(past), memory=_known(memory))

    def _read(self, words: Tensor, state: PairState, cache: EncoderDecoderCache | None) -> Layers:
        read = self.network(
            inputs_embeds=words,
            encoder_hidden_states=state.states,
            encoder_attention_mask=state.mask.long(),
            past_key_values=cache,
            use_cache=cache is not None,
            output_hidden_states=self._lower > 0,
        )
        lower = read.hidden_states[-2 : -2 - self._lower : -1] if self._lower else ()
        lower = tuple(F.rms_norm(states, (self.size,)) for states in lower)
        return Layers(read.last_hidden_state * self.scale, lower)

    def activations(
        self, rows: int, steps: int, context: int, words: int, device: torch.device, *, recompute: bool
    ) -> int:
        """Approximate number of numbers kept for backpropagation through responses to encoded contexts."""

        def read() -> None:
            self.network(
                inputs_embeds=torch.empty(rows, steps, words, requires_grad=True),
                encoder_hidden_states=torch.empty(rows, context, self.size, requires_grad=True),
                use_cache=False,
            )

        return kept_floats(self.network, read, rows * steps, device, recompute=recompute)


@dataclass(frozen=True)
class EncoderDecoder:
    """Both networks of one model. Their weights are random until :meth:`adopt`.

    ``recompute`` is true to compute activations again in the backward pass instead of keeping them.
    """

    encoder: EncoderNetwork
    decoder: DecoderNetwork
    recompute: bool = False

    def free(self) -> None:
        """Drop the networks and their memory, until :meth:`adopt`."""
        self.encoder.network = self.decoder.network = nn.Identity()

    def adopt(self, model: Any) -> None:
        """Take the networks of a model of transformers, whose embedding they then lack."""
        model.set_input_embeddings(nn.Identity())
        for own, network in ((self.encoder, model.get_encoder()), (self.decoder, model.get_decoder())):
            own.network = network
            if self.recompute:
                recompute_layers(network)

    def expected(self, model: Any, tokens: Tensor) -> Tensor:
        """Hidden states (T, H) of a text (T,) after itself as the context, by a model of transformers."""
        encoded = model.get_encoder()(input_ids=tokens[None])[0]
        states = model.get_decoder()(input_ids=tokens[None], encoder_hidden_states=encoded)[0]
        read: Tensor = states[0] * self.decoder.scale
        return read

    def tried(self, vectors: Tensor) -> Tensor:
        """Hidden states (T, H) of word vectors (T, E) by the ways in which a dialog model reads.

        One row has padding after its context and reads the second half from cached keys. Beside it, another
        has a longer context.
        """
        self.encoder.eval()
        self.decoder.eval()
        contexts = torch.cat((vectors, vectors[:1]))[None].expand(2, -1, -1)
        mask = torch.ones(contexts.shape[:2], dtype=torch.bool)
        mask[1, -1] = False
        first, second = vectors[None].expand(2, -1, -1).split(len(vectors) // 2, dim=1)
        before, state = self.decoder.step(first, PairState(self.encoder(contexts, mask), mask))
        after, _ = self.decoder.step(second[1:], state.select(torch.tensor([1])))
        return torch.cat((before.last[1], after.last[0]))


def encoder_decoder(architecture: Architecture, lower: int = 0, recompute: bool = False) -> EncoderDecoder:
    """New networks with random weights; see :class:`DecoderNetwork` and :class:`EncoderDecoder`."""
    pair = EncoderDecoder(EncoderNetwork(), DecoderNetwork(architecture, lower), recompute)
    pair.adopt(architecture.network())
    return pair


def _known(cache: Cache) -> tuple[KeysValues, ...]:
    """All keys and values of each layer of a cache."""
    if isinstance(cache, WindowCache):
        return tuple(cache.known())
    layers: list[Any] = cache.layers
    return tuple((layer.keys, layer.values) for layer in layers)
