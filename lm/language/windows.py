"""Streams of tokens cut into windows: what a language model reads in training and in validation.

The tokens of a shard are laid out as B streams of equal length, as in Merity et al. (2018): stream b is a
contiguous piece of the text. Every token is a target, predicted from the token before it in the text,
``<eos>`` at its beginning. ``paper`` leaves out the first token of each stream, and in training a last
window of one token, as the authors' code does.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm.language.config import WindowConfig

Ids = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of every stream: T tokens of B streams."""

    tokens: Tensor  # (T, B) int64: the inputs
    targets: Tensor  # (T, B) int64: the tokens that follow them
    first: bool  # whether the streams begin here
    scale: float  # factor on the learning rate

    def to(self, device: torch.device) -> "Window":
        return Window(self.tokens.to(device), self.targets.to(device), self.first, self.scale)


@dataclass(frozen=True, slots=True)
class Span:
    """Where a window lies: rows ``start`` to ``stop`` of the streams of a shard."""

    shard: int
    start: int
    stop: int
    first: bool
    scale: float


class Streams:
    """The shards of a split laid out as streams."""

    def __init__(self, shards: Sequence[Ids], streams: int, eos: int, *, paper: bool = False) -> None:
        self._shards = [shard for shard in shards if len(shard) // streams > paper]
        self._streams, self._eos, self._paper = streams, eos, paper

    def rows(self, shard: int) -> int:
        """Tokens of each stream of a shard; what does not fill a row is left out."""
        return len(self._shards[shard]) // self._streams

    def spans(
        self, config: WindowConfig, generator: np.random.Generator, *, training: bool = False
    ) -> Iterator[Span]:
        """Where the windows of a pass lie; shards come in a random order, their streams in order."""
        for shard in generator.permutation(len(self._shards)).tolist():
            yield from self._spans_of(shard, config, generator, shortest=1 + (training and self._paper))

    def _spans_of(
        self, shard: int, config: WindowConfig, generator: np.random.Generator, shortest: int
    ) -> Iterator[Span]:
        rows = self.rows(shard)
        begin = start = int(self._paper)
        while rows - start >= shortest:
            drawn = _length(config, generator)
            stop = min(rows, start + drawn)
            length = drawn if self._paper else stop - start
            scale = length / config.length if config.rescale_lr else 1.0
            yield Span(shard, start, stop, start == begin, scale)
            start = stop

    def window(self, span: Span) -> Window:
        """Reads a window."""
        rows = self.rows(span.shard)
        streams = self._shards[span.shard][: rows * self._streams].reshape(self._streams, rows)
        targets = streams[:, span.start : span.stop].astype(np.int64)
        ends = np.concatenate(([self._eos], streams[:-1, -1]))
        before = streams[:, span.start - 1] if span.start else ends
        inputs = np.concatenate((before[:, None].astype(np.int64), targets[:, :-1]), axis=1)
        return Window(_steps(inputs), _steps(targets), span.first, span.scale)


def _steps(streams: NDArray[np.int64]) -> Tensor:
    """(B, T) → (T, B)."""
    return torch.from_numpy(np.ascontiguousarray(streams.T))


def _length(config: WindowConfig, generator: np.random.Generator) -> int:
    """Tokens of a window: around ``length``, or now and then around half of it."""
    if not config.random:
        return config.length
    middle = config.length if generator.random() >= config.half_share else config.length / 2
    drawn = max(config.shortest, int(generator.normal(middle, config.spread)))
    return min(drawn, config.length + config.max_delta) if config.max_delta else drawn


def longest(config: WindowConfig) -> int:
    """The longest window, or where there is no limit one that is hardly ever exceeded: by four deviations."""
    if not config.random:
        return config.length
    unlikely = config.length + math.ceil(4 * config.spread)
    return min(unlikely, config.length + config.max_delta) if config.max_delta else unlikely


def mean_length(config: WindowConfig) -> float:
    """Expected tokens of a window, nearly: the shortest and longest lengths are left out of account."""
    return config.length * (1 - 0.5 * config.half_share) if config.random else config.length
