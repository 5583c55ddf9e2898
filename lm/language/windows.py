"""Streams of tokens cut into windows: what a language model reads in training and in validation.

The tokens of a shard are laid out as B streams of equal length, as in Merity et al. (2018): stream b is a
contiguous piece of the text. Every token is a target, predicted from the token before it in the text,
``<eos>`` at its beginning. ``paper`` leaves out the first token of each stream, and in training a last
window of one token, as the authors' code does. ``ReadHeads`` is the order of Melis et al. (2020) instead.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm.errors import DataError
from lm.language.config import WindowConfig

Ids = NDArray[np.integer[Any]]

_ORDER = 1 << 62  # sets the draws of the order apart from those of window lengths: no pass has this number


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of every stream: T tokens of B streams."""

    tokens: Tensor  # (T, B) int64: the inputs
    targets: Tensor  # (T, B) int64: the tokens that follow them
    first: bool  # whether the streams begin here
    scale: float  # factor on the learning rate
    rows: slice | None = None  # of the carried state: its streams, where they are a part of all

    def to(self, device: torch.device) -> "Window":
        return Window(self.tokens.to(device), self.targets.to(device), self.first, self.scale)

    def part(self, rows: slice) -> "Window":
        """Only some of the streams."""
        return Window(self.tokens[:, rows], self.targets[:, rows], self.first, self.scale, rows)


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
            yield Span(shard, start, stop, start == begin, _scale(length, config))
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


class ReadHeads:
    """Streams that read all of a text each, from places spread over it (Melis et al. 2020, as in their code).

    Heads begin at sentences that are equally far from each other, the first of them drawn at random. When a
    head has read the whole text, round its end, it begins again at its own sentence, moved by up to
    ``jitter`` sentences, drawn for each head anew, as it is at first. Where a head reads in a window depends
    on the seed and the number of tokens it has read alone. Streams are never set back to a zero state.

    Args:
        shards: the text, kept in memory as a whole.
        streams: B, the number of heads.
        eos: what ends a sentence.

    Raises:
        DataError: fewer sentences than heads.
    """

    def __init__(self, shards: Sequence[Ids], streams: int, eos: int, jitter: int, seed: int) -> None:
        self._text = np.concatenate(shards) if len(shards) > 1 else shards[0]
        ends = np.flatnonzero(self._text == eos) + 1
        self._sentences = np.concatenate(([0], ends[ends < len(self._text)]))
        self._streams, self._eos, self._jitter, self._seed = streams, eos, jitter, seed
        if len(self._sentences) < streams:
            raise DataError(
                f'window.order = "read_heads": {len(self._sentences):,} sentences are too few for'
                f" train.batch_size = {streams} heads; lower it, or use the order streams"
            )

    def spans(self, number: int, config: WindowConfig, generator: np.random.Generator) -> Iterator[Span]:
        """Where the windows of a pass lie, ``start`` counting tokens that a head has read in all passes.

        In a pass, all heads together read the text about once, in windows of full length where that is fixed.
        """
        rows = max(1, len(self._text) // self._streams)
        if not config.random and rows > config.length:
            rows -= rows % config.length
        start, end = number * rows, (number + 1) * rows
        while start < end:
            stop = min(end, start + _length(config, generator))
            yield Span(0, start, stop, start == 0, _scale(stop - start, config))
            start = stop

    def window(self, span: Span) -> Window:
        """Reads a window."""
        read = np.arange(max(0, span.start - 1), span.stop)
        tokens = self._text[self._places(read)].astype(np.int64)  # (B, T + 1), or (B, T) at the beginning
        if not span.start:
            tokens = np.concatenate((np.full((self._streams, 1), self._eos), tokens), axis=1)
        return Window(_steps(tokens[:, :-1]), _steps(tokens[:, 1:]), span.first, span.scale)

    def _places(self, read: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """Where in the text each head is after so many tokens, (B, len(read))."""
        length, count = len(self._text), len(self._sentences)
        first = np.random.default_rng((self._seed, _ORDER)).integers(count)
        heads = first + np.arange(self._streams) * count // self._streams
        rounds, within = np.divmod(read, length)
        places = np.empty((self._streams, len(read)), np.int64)
        for again in np.unique(rounds):
            draw = np.random.default_rng((self._seed, _ORDER, 1 + int(again)))
            moved = heads + draw.integers(-self._jitter, self._jitter + 1, self._streams)
            begin = self._sentences[moved % count]
            places[:, rounds == again] = (begin[:, None] + within[rounds == again]) % length
        return places


def _steps(streams: NDArray[np.int64]) -> Tensor:
    """(B, T) → (T, B)."""
    return torch.from_numpy(np.ascontiguousarray(streams.T))


def _scale(length: int, config: WindowConfig) -> float:
    """The factor on the learning rate of an update from a window of so many tokens."""
    return length / config.length if config.rescale_lr else 1.0


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
