"""The network of a pretrained causal language model as a trunk.

A stream is read in blocks of ``span`` tokens. In a block, a token attends to all tokens before it, as the
model does in a text of its own, and positions are counted from the beginning of the block. After a block,
the stream begins anew. Blocks begin at places that do not depend on windows, so no length of windows changes
the result. Keys and values of a block's earlier windows are cached without gradients.

Dropping the oldest keys instead, with which a sliding window would begin, ruins models that were trained
without it (Xiao et al. 2024).

T time · B streams · E size of the word vectors · H hidden size · S keys from before in the block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import Cache, DynamicLayer

from lm.huggingface.architecture import Architecture
from lm.huggingface.kept import kept_floats, recomputable
from lm.trunks.attention import KeysValues
from lm.trunks.cache import CacheState
from lm.trunks.trunk import Trunk, TrunkOutputs


class PretrainedTrunk(Trunk[CacheState]):
    """A network of transformers without its embedding and output layer.

    Args:
        architecture: kind and sizes. The weights are random until :meth:`adopt`.
        span: number of tokens of a block.
        lower: number of layers from the last one down of which the inputs are wanted. They are divided by
            their root mean square.
        recompute: True to compute activations again in the backward pass instead of keeping them.
    """

    def __init__(
        self, architecture: Architecture, span: int, lower: int = 0, recompute: bool = False
    ) -> None:
        super().__init__()
        config = architecture.config
        self.size, self.span, self._lower, self._recompute = architecture.hidden_size, span, lower, recompute
        inside = getattr(config, "hidden_size", self.size)  # of the layers, whose output a model may project
        self.lower_sizes, self._words = (inside,) * architecture.layers, architecture.embedding_size
        self._key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self._head_size = getattr(config, "head_dim", None) or inside // config.num_attention_heads
        self.network: Any = nn.Identity()
        self.adopt(architecture.network())

    def adopt(self, model: Any) -> None:
        """Take the network of a model of transformers, whose embedding it then lacks."""
        self.network = model.base_model
        self.network.set_input_embeddings(nn.Identity())
        if self._recompute:
            recompute_layers(self.network)

    def free(self) -> None:
        """Drop the network and its memory, until :meth:`adopt`."""
        self.network = nn.Identity()

    def expected(self, model: Any, tokens: Tensor) -> Tensor:
        """Hidden states (T, H) of a text (T,) by a model of transformers."""
        states: Tensor = model.base_model(input_ids=tokens[None])[0][0]
        return states

    def tried(self, vectors: Tensor) -> Tensor:
        """Hidden states (T, H) of word vectors (T, E) by the ways in which a trunk reads.

        One stream reads the second half from cached keys. Beside it, another begins with the first half.
        """
        self.eval()
        first, second = vectors[:, None].split(len(vectors) // 2)
        before = self(torch.cat((first, second), 1), self.initial_state(2)).state
        state = before.forgetting(torch.tensor([True, False]))
        read = self(torch.cat((second, first), 1), state).outputs
        return torch.cat((read[:, 1], read[:, 0]))

    def initial_state(self, streams: int) -> CacheState:
        """An empty cache."""
        layers, like = len(self.lower_sizes), next(self.parameters())
        return CacheState.empty(streams, layers, self._key_heads, self._head_size, self.span, like)

    def state_from(self, tensors: dict[str, Tensor], device: torch.device) -> CacheState:
        return CacheState.of(tensors, device, len(self.lower_sizes))

    def forward(
        self, words: Tensor, state: CacheState, keep: Tensor | None = None
    ) -> TrunkOutputs[CacheState]:
        pieces: list[tuple[Tensor, ...]] = []
        start = 0
        resets = () if keep is None else (~keep.cpu()).any(1).nonzero()[:, 0].tolist()
        while start < len(words):
            if keep is not None:
                state = state.forgetting(keep[start])
            stop = min(len(words), start + self.span - int(state.lengths.max()))
            stop = min([stop, *(step for step in resets if step > start)])
            piece, state = self._read(words[start:stop], state)
            pieces.append(piece)
            state, start = state.forgetting(state.lengths < self.span), stop
        last, *lower = (
            torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*pieces, strict=True)
        )
        return TrunkOutputs(last, tuple(lower), state)

    def begin(self, words: Tensor, lengths: Tensor) -> TrunkOutputs[CacheState]:
        """Read the first tokens of streams: the last ``lengths`` (B,) of word vectors (T, B, E)."""
        (last, *lower), state = self._read(words, self.initial_state(words.shape[1]), len(words) - lengths)
        return TrunkOutputs(last, tuple(lower), state)

    def _read(
        self, words: Tensor, state: CacheState, padding: Tensor | None = None
    ) -> tuple[tuple[Tensor, ...], CacheState]:
        """Outputs of the last layer and wanted inputs, each (T, B, H), of a part of a block.

        ``padding`` (B,) is the number of first steps that are none, at the beginning of all streams.
        """
        steps, size, device = len(words), state.size, words.device
        cache = WindowCache(state.layers)
        lengths = state.lengths.to(device)[:, None]
        seen: Tensor | None = None
        if padding is not None:
            state = replace(state, lengths=-padding.cpu())
            lengths = -padding[:, None]
            seen = (torch.arange(steps, device=device) >= padding[:, None]).long()
        elif not bool((state.lengths == size).all()):
            seen = (torch.arange(size + steps, device=device) >= size - lengths).long()  # (B, S + T)
        read = self.network(
            inputs_embeds=words.transpose(0, 1).contiguous(),
            attention_mask=seen,
            position_ids=(lengths + torch.arange(steps, device=device)).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            output_hidden_states=self._lower > 0,
        )
        lower = read.hidden_states[-2 : -2 - self._lower : -1] if self._lower else ()
        found = (read.last_hidden_state, *(F.rms_norm(states, states.shape[-1:]) for states in lower))
        return tuple(one.transpose(0, 1) for one in found), state.after(cache.known(), steps, None)

    def dropout_rates(self) -> tuple[float, ...]:
        return tuple(getattr(*rate) for rate in self._rates())

    def scale_dropout(self, factor: float) -> None:
        for module, name in self._rates():
            setattr(module, name, factor * getattr(module, name))

    def _rates(self) -> list[tuple[nn.Module, str]]:
        """Modules and their attributes that are dropout rates, such as ``attention_dropout``."""
        return [
            (module, name)
            for module in self.network.modules()
            for name, value in vars(module).items()
            if isinstance(value, float) and ("drop" in name or isinstance(module, nn.Dropout))
        ]

    def activations(self, steps: int, streams: int, device: torch.device) -> int:
        """Numbers kept of the last window of a block, and the cached keys and values."""
        cached: int = 2 * len(self.lower_sizes) * self.span * self._key_heads * self._head_size

        def read() -> None:
            state = self.initial_state(streams)
            with torch.no_grad():
                if steps < self.span:
                    state = self(torch.empty(self.span - steps, streams, self._words), state).state
            self(torch.empty(steps, streams, self._words, requires_grad=True), state)

        kept = kept_floats(self.network, read, steps * streams, device, recompute=self._recompute)
        return kept + streams * cached


def recompute_layers(network: nn.Module) -> None:
    """Let the layers of a network compute their activations again in the backward pass.

    The switch of transformers does so only in training, and without the keys of earlier windows.
    """
    for layer in recomputable(network):
        if not next(layer.parameters()).is_meta:  # whose activations are counted, not kept
            layer.__class__ = _recomputing(type(layer))


def _recomputing(kind: Any) -> type:
    """The class of layers of a kind that compute their activations again."""

    def forward(self: Any) -> Any:
        return partial(checkpoint, partial(kind.forward, self), use_reentrant=False)

    made = type(f"Recomputing{kind.__name__}", (kind,), {})
    made.forward = property(forward)  # type: ignore[attr-defined]
    return made


class _WindowLayer(DynamicLayer):
    """Keys and values of a layer. Those from before never change, so a layer may be computed again."""

    def __init__(self, past: KeysValues) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lazy_initialization(*past)
        self.keys, self.values = past
        self.past = self.known = past

    def update(self, key_states: Tensor, value_states: Tensor, options: Any = None) -> KeysValues:
        keys, values = torch.cat((self.past[0], key_states), 2), torch.cat((self.past[1], value_states), 2)
        self.known = (keys, values)
        return self.known


class WindowCache(Cache):
    """Keys and values of a block between windows, as transformers asks for them."""

    def __init__(self, past: Sequence[KeysValues]) -> None:
        super().__init__(layers=[_WindowLayer(pair) for pair in past])

    def known(self) -> Iterator[KeysValues]:
        """All keys and values of each layer, those from before first."""
        for layer in self.layers:
            assert isinstance(layer, _WindowLayer)
            yield layer.known
