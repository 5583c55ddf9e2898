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

_TRUNCATED = 0.87962566103423978  # standard deviation of a standard normal that is cut off at ± 2


class Outputs(NamedTuple):
    """What a window gives."""

    hidden: Layers  # (T, B, H) of the last layer, or of their sum, dropped, and those below that a head reads
    raw: Tensor  # (T, B, H) before dropout
    state: ModelState  # after the window


class LanguageModel(nn.Module):
    """AWD-LSTM (Merity et al. 2018) with a replaceable head, as in Yang et al. (2018), and replaceable cells.

    With other settings it is the model of Melis et al. (2020): see docs/reproduction.md.

    Args:
        config: sizes, all of them found (:func:`lm.language.sizes.sized`), and regularisation; the published
            places of dropout are the only ones.
        vocab_size: V.
        eos: the number of ``<eos>``, at which an episodic model forgets; only needed to read.

    Raises:
        ConfigError: a tied head whose context size is not the embedding size.
        ValueError: a budget or a ratio that leaves sizes to be found.
    """

    def __init__(self, config: LmConfig, vocab_size: int, eos: int | None = None) -> None:
        super().__init__()
        if config.model.budget or config.model.input_embedding_ratio is not None:
            raise ValueError("the config leaves sizes to be found; call sized() first")
        self.config, self.eos = config.model, eos
        cell, sizes = config.cell, (config.model.embedding_size, *config.model.hidden_sizes)
        masked = config.model.state_dropout or config.model.episodic
        build = gated_layer if masked else recurrent_layer  # torch's own layer has no place for a mask
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
        """Zeros for so many streams."""
        weight = self.embedding.weight
        zeros = [weight.new_zeros(streams, size) for size in self.config.hidden_sizes]
        return [(zero, zero) for zero in zeros]

    def forward(self, tokens: Tensor, state: ModelState) -> Outputs:
        """Reads a window of tokens (T, B) from a state on; masks of dropout are drawn for it."""
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
        """Hidden states (T, B, H) as the head's own dropout takes them: (T · B, H) for a mask each step."""
        per_step = self.config.dropout_masks == "per_step"
        return hidden.map(lambda states: states.flatten(0, 1)) if per_step else hidden

    def _drop(self, states: Tensor, rate: float) -> Tensor:
        drop = dropout if self.config.dropout_masks == "per_step" else locked_dropout
        return drop(states, rate, self.training)

    def _kept(self, tokens: Tensor) -> Tensor | None:
        """Where an episodic model keeps its state, (T, B): not where it reads ``<eos>``."""
        if not self.config.episodic:
            return None
        if self.eos is None:
            raise ValueError("an episodic model cannot read before it is told the number of <eos>")
        return tokens != self.eos

    def _masks(self, h: Tensor, keep: Tensor | None) -> tuple[Tensor | None, ...]:
        """What a layer gets besides input and state: nothing, or a mask (B, H) and where state is kept."""
        rate = self.config.state_dropout
        dropped = dropout_mask(h, h.shape, rate) if self.training and rate else None
        return () if dropped is None and keep is None else (dropped, keep)


def replaced(state: ModelState, rows: slice, new: ModelState) -> ModelState:
    """A copy of a state whose ``rows``, streams, are those of another."""

    def patched(old: Tensor, part: Tensor) -> Tensor:
        old = old.clone()
        old[rows] = part
        return old

    return [(patched(h, n), patched(c, m)) for (h, c), (n, m) in zip(state, new, strict=True)]


def detached(state: ModelState) -> ModelState:
    """The state as a fact: no gradient goes back through it."""
    return [(h.detach(), c.detach()) for h, c in state]


def state_tensors(state: ModelState) -> dict[str, Tensor]:
    """The state by name, as checkpoints keep it."""
    named: dict[str, Tensor] = {}
    for layer, (h, c) in enumerate(state):
        named |= {f"h{layer}": h, f"c{layer}": c}
    return named


def state_from(tensors: dict[str, Tensor], device: torch.device) -> ModelState:
    """What :func:`state_tensors` took apart."""
    layers = range(len(tensors) // 2)
    return [(tensors[f"h{layer}"].to(device), tensors[f"c{layer}"].to(device)) for layer in layers]
