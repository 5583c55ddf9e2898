"""The recurrent language model: embedding, a stack of weight-dropped layers, and a head of any kind.

T time · B streams · H hidden size of the last layer · V words.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lm.cells import recurrent_layer
from lm.heads import Head
from lm.language.config import LmConfig
from lm.regularize import locked_dropout, word_dropout

State = list[tuple[Tensor, Tensor]]  # (h, c) of each layer, each (B, its hidden size)


class Outputs(NamedTuple):
    """What a window gives."""

    hidden: Tensor  # (T, B, H) of the last layer, dropped, and after it those below that the head reads
    raw: Tensor  # (T, B, H) before dropout
    state: State  # after the window


class LanguageModel(nn.Module):
    """AWD-LSTM (Merity et al. 2018) with a replaceable head, as in Yang et al. (2018), and replaceable cells.

    Args:
        config: sizes and regularisation; the published places of dropout are the only ones.
        vocab_size: V.

    Raises:
        ConfigError: a tied head whose context size is not the embedding size.
    """

    def __init__(self, config: LmConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config.model
        sizes = (config.model.embedding_size, *config.model.hidden_sizes)
        self.embedding = nn.Embedding(vocab_size, sizes[0])
        self.layers = nn.ModuleList(
            recurrent_layer(config.cell, inputs, outputs, config.model.weight_dropout)
            for inputs, outputs in pairwise(sizes)
        )
        embedding = self.embedding.weight
        assert isinstance(embedding, nn.Parameter)
        self.head = Head(config.head, sizes[-1], vocab_size, embedding, lower_sizes=sizes[-2::-1])
        nn.init.uniform_(self.embedding.weight, -config.model.init_range, config.model.init_range)

    def initial_state(self, streams: int) -> State:
        """Zeros for so many streams."""
        weight = self.embedding.weight
        zeros = [weight.new_zeros(streams, size) for size in self.config.hidden_sizes]
        return [(zero, zero) for zero in zeros]

    def forward(self, tokens: Tensor, state: State) -> Outputs:
        """Reads a window of tokens (T, B) from a state on; masks of dropout are drawn once for it."""
        rates, training = self.config, self.training
        words = self.embedding(tokens)
        words = word_dropout(words, tokens, self.head.vocab_size, rates.embedding_dropout, training)
        raw = inputs = locked_dropout(words, rates.input_dropout, training)
        after: State = []
        lower: list[Tensor] = []  # what each layer reads, the highest first
        for layer, before in zip(self.layers, state, strict=True):
            lower.insert(0, inputs)
            raw, last = layer(inputs, before)
            after.append(last)
            final = len(after) == len(self.layers)
            inputs = locked_dropout(raw, rates.output_dropout if final else rates.hidden_dropout, training)
        read = lower[: len(self.head.lower_sizes)]
        return Outputs(torch.cat((inputs, *read), -1) if read else inputs, raw, after)


def detached(state: State) -> State:
    """The state as a fact: no gradient goes back through it."""
    return [(h.detach(), c.detach()) for h, c in state]


def state_tensors(state: State) -> dict[str, Tensor]:
    """The state by name, as checkpoints keep it."""
    named: dict[str, Tensor] = {}
    for layer, (h, c) in enumerate(state):
        named |= {f"h{layer}": h, f"c{layer}": c}
    return named


def state_from(tensors: dict[str, Tensor], device: torch.device) -> State:
    """What :func:`state_tensors` took apart."""
    layers = range(len(tensors) // 2)
    return [(tensors[f"h{layer}"].to(device), tensors[f"c{layer}"].to(device)) for layer in layers]
