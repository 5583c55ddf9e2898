"""The recurrent language model: embedding, a stack of recurrent layers, and a head of any kind.

T time · B streams · H hidden size of the last layer · V words.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lm.cells.layers import gated_layer, recurrent_layer
from lm.heads.head import Head
from lm.heads.states import Layers
from lm.language.config import LmConfig
from lm.regularize import dropout, dropout_mask, locked_dropout, word_dropout

ModelState = list[tuple[Tensor, Tensor]]  # (h, c) of each layer, each (B, its hidden size)

_TRUNCATED = 0.87962566103423978  # standard deviation of a standard normal truncated at ± 2


class Outputs(NamedTuple):
    """Outputs of the recurrent layers for a window."""

    hidden: Layers  # (T, B, H) of the last layer or of the sum, after dropout, and lower layers for the head
    raw: Tensor  # (T, B, H) before dropout
    state: ModelState  # after the window


class LanguageModel(nn.Module):
    """AWD-LSTM (Merity et al. 2018) with a replaceable head, as in Yang et al. (2018), and replaceable cells.

    With other settings it is the model of Melis et al. (2020), see docs/reproduction.md.

    Args:
        config: sizes, resolved by :func:`lm.language.sizes.sized`, and regularisation. Dropout applies only
            in the published places.
        vocab_size: V.
        eos: id of ``<eos>``, at which an episodic model resets its state. Only reading needs it.

    Raises:
        ConfigError: a tied head whose context size is not the embedding size.
        ValueError: sizes that a budget or a ratio leaves unresolved.
    """

    def __init__(self, config: LmConfig, vocab_size: int, eos: int | None = None) -> None:
        super().__init__()
        if config.model.budget or config.model.input_embedding_ratio is not None:
            raise ValueError("the config has unresolved sizes; call sized() first")
        self.config, self.eos = config.model, eos
        cell, sizes = config.cell, (config.model.embedding_size, *config.model.hidden_sizes)
        masked = config.model.state_dropout or config.model.episodic
        build = gated_layer if masked else recurrent_layer  # torch's own layer takes no mask
        self.embedding = nn.Embedding(vocab_size, sizes[0])
        self.layers = nn.ModuleList(
            build(cell, inputs, outputs, config.model.weight_dropout) for inputs, outputs in pairwise(sizes)
        )
        embedding = self.embedding.weight
        assert isinstance(embedding, nn.Parameter)
        self.head = Head(config.head, sizes[-1], vocab_size, embedding, lower_sizes=sizes[-2::-1])
        if config.model.embedding_init == "scaled":
            self._scale()
        else:
            nn.init.uniform_(self.embedding.weight, -config.model.init_range, config.model.init_range)

    def _scale(self) -> None:
        """The initial embedding, output matrix and projection of Melis et al. (2020)."""
        for weight in dict.fromkeys((self.embedding.weight, self.head.weight)):  # once where they are tied
            deviation = weight.shape[1] ** -0.5 / _TRUNCATED
            nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        if self.head.projection is not None:
            nn.init.orthogonal_(self.head.projection.weight)

    def initial_state(self, streams: int) -> ModelState:
        """A zero state for a number of streams."""
        weight = self.embedding.weight
        zeros = [weight.new_zeros(streams, size) for size in self.config.hidden_sizes]
        return [(zero, zero) for zero in zeros]

    def forward(self, tokens: Tensor, state: ModelState) -> Outputs:
        """Read a window of tokens (T, B) from a state, with new dropout masks."""
        rates = self.config
        words = self.embedding(tokens)
        words = word_dropout(words, tokens, self.head.vocab_size, rates.embedding_dropout, self.training)
        inputs = self._drop(words, rates.input_dropout)
        outputs: list[Tensor] = []
        after: ModelState = []
        lower: list[Tensor] = []  # what each layer reads, the highest first
        keep = self._kept(tokens)
        for layer, before in zip(self.layers, state, strict=True):
            if outputs:
                inputs = self._drop(outputs[-1], rates.hidden_dropout)
            lower.insert(0, inputs)
            output, last = layer(inputs, before, *self._masks(before[0], keep))
            outputs.append(output)
            after.append(last)
        raw = sum(outputs[1:], outputs[0]) if rates.layer_sum else outputs[-1]
        last = self._drop(raw, rates.output_dropout)
        return Outputs(Layers(last, tuple(lower[: len(self.head.lower_sizes)])), raw, after)

    def for_head(self, hidden: Layers) -> Layers:
        """Hidden states (T, B, H) in the shape for the head's own dropout: (T · B, H) for per-step masks."""
        per_step = self.config.dropout_masks == "per_step"
        return hidden.map(lambda states: states.flatten(0, 1)) if per_step else hidden

    def _drop(self, states: Tensor, rate: float) -> Tensor:
        drop = dropout if self.config.dropout_masks == "per_step" else locked_dropout
        return drop(states, rate, self.training)

    def _kept(self, tokens: Tensor) -> Tensor | None:
        """Mask (T, B) of the steps at which an episodic model keeps its state: all except at ``<eos>``."""
        if not self.config.episodic:
            return None
        if self.eos is None:
            raise ValueError("an episodic model needs the id of <eos> to read; pass eos")
        return tokens != self.eos

    def _masks(self, h: Tensor, keep: Tensor | None) -> tuple[Tensor | None, ...]:
        """Further arguments of a layer: none, or a dropout mask (B, H) and the mask of kept states."""
        rate = self.config.state_dropout
        dropped = dropout_mask(h, h.shape, rate) if self.training and rate else None
        return () if dropped is None and keep is None else (dropped, keep)


def replaced(state: ModelState, rows: slice, new: ModelState) -> ModelState:
    """A copy of a state whose ``rows`` (streams) come from ``new``."""

    def patched(old: Tensor, part: Tensor) -> Tensor:
        old = old.clone()
        old[rows] = part
        return old

    return [(patched(h, n), patched(c, m)) for (h, c), (n, m) in zip(state, new, strict=True)]


def detached(state: ModelState) -> ModelState:
    """The state, detached."""
    return [(h.detach(), c.detach()) for h, c in state]


def state_tensors(state: ModelState) -> dict[str, Tensor]:
    """The state as tensors by name, for checkpoints."""
    named: dict[str, Tensor] = {}
    for layer, (h, c) in enumerate(state):
        named |= {f"h{layer}": h, f"c{layer}": c}
    return named


def state_from(tensors: dict[str, Tensor], device: torch.device) -> ModelState:
    """The state from the tensors of :func:`state_tensors`."""
    layers = range(len(tensors) // 2)
    return [(tensors[f"h{layer}"].to(device), tensors[f"c{layer}"].to(device)) for layer in layers]
