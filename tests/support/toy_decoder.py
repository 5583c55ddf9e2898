"""A small model with state for the tests of decoding, and what they measure responses with."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from dialog.decoding.beam import beam_search
from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Hypothesis, Marks

BOS, EOS = 0, 1


@dataclass(frozen=True)
class Hidden:
    values: Tensor  # (R, H)

    def select(self, rows: Tensor) -> "Hidden":
        return Hidden(self.values[rows])


class Recurrent:
    """A random recurrent network in float64: all tokens before, and the source, decide the next."""

    def __init__(self, seed: int, vocab: int, sources: int, sharpness: float = 2.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
        self.embedding, self.recurrent = draw(vocab, 6), draw(6, 6)
        self.output = draw(6, vocab) * sharpness
        self.start = draw(sources, 6)
        self.calls: list[int] = []

    def state(self, sources: Sequence[int] | None = None) -> Hidden:
        return Hidden(self.start if sources is None else self.start[list(sources)])

    def step(self, tokens: Tensor, state: Hidden) -> tuple[Tensor, Hidden]:
        self.calls.append(len(tokens))
        values = torch.tanh(self.embedding[tokens] + state.values @ self.recurrent)
        return torch.log_softmax(values @ self.output, -1), Hidden(values)

    def search(self, config: DecodeConfig, sources: Sequence[int], forbidden: Sequence[int] = (BOS,)) -> list:
        return beam_search(self.step, self.state(sources), len(sources), config, Marks(BOS, EOS, forbidden))

    def log_prob(self, source: int, tokens: Sequence[int], *, finished: bool = True) -> float:
        state, total, last = self.state([source]), 0.0, BOS
        for token in [*tokens, EOS] if finished else tokens:
            log_probs, state = self.step(torch.tensor([last]), state)
            total, last = total + float(log_probs[0, token]), token
        return total


def decode(**values: object) -> DecodeConfig:
    return DecodeConfig.model_validate({"max_length": 6, "nbest": 3, "beam": 4} | values)


def repeats(tokens: Sequence[int], n: int) -> bool:
    grams = list(zip(*(tokens[i:] for i in range(n)), strict=False))
    return len(grams) != len(set(grams))


def assert_same(left: list[Hypothesis], right: list[Hypothesis]) -> None:
    assert [(h.tokens, h.finished) for h in left] == [(h.tokens, h.finished) for h in right]
    for one, other in zip(left, right, strict=True):
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-9)
        assert one.score == pytest.approx(other.score, abs=1e-9)
