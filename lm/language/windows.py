"""Batches of a language model in training and validation: streams of tokens, cut into windows.

The tokens of a file are laid out as B streams of equal length, as in Merity et al. (2018). Stream b is a
contiguous piece of the text. Every token is a target, and its input is the token before it in the text, or
``<eos>`` at the beginning. ``paper`` omits the first token of each stream, and in training a last window of
one token, like the authors' code. ``ReadHeads`` has the order of Melis et al. (2020) instead.

With ``window.partial_shuffle``, each stream of a pass begins at a random place of its piece, and wraps round
at its end. The input of a target is still the token before it in the text.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm.errors import MisfitError
from lm.language.config import WindowConfig

Ids = NDArray[np.integer[Any]]

_ORDER = 1 << 62  # seeds the draws of the order; no pass has this number, so window lengths draw others


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of every stream: T tokens of B streams."""

    tokens: Tensor  # (T, B) int64: the inputs
    targets: Tensor  # (T, B) int64: the tokens that follow them
    first: bool  # the streams begin here
    scale: float  # factor on the learning rate
    rows: slice | None = None  # streams of the window in the carried state; None = all

    def to(self, device: torch.device) -> "Window":
        return replace(self, tokens=self.tokens.to(device), targets=self.targets.to(device))

    def select(self, rows: slice) -> "Window":
        """The window of some of the streams."""
        return replace(self, tokens=self.tokens[:, rows], targets=self.targets[:, rows], rows=rows)


@dataclass(frozen=True, slots=True)
class Span:
    """The position of a window: rows ``start`` to ``stop`` of the streams of a file."""

    file: int
    start: int
    stop: int
    first: bool
    scale: float
    places: tuple[int, ...] = ()  # at which each stream of a partially shuffled pass begins


class Streams:
    """The files of a split laid out as streams."""

    def __init__(self, files: Sequence[Ids], streams: int, begin: int, *, paper: bool = False) -> None:
        self._files = [file for file in files if len(file) // streams > paper]
        self._streams, self._begin, self._paper = streams, begin, paper

    @property
    def empty(self) -> bool:
        """True if no file has a token for every stream."""
        return not self._files

    @property
    def trainable(self) -> bool:
        """True if a file has a window of training."""
        return any(self.rows(file) > 2 * self._paper for file in range(len(self._files)))

    def rows(self, file: int) -> int:
        """Number of tokens of each stream of a file; an incomplete last row is left out."""
        return len(self._files[file]) // self._streams

    def spans(
        self, config: WindowConfig, generator: np.random.Generator, *, training: bool = False
    ) -> Iterator[Span]:
        """Yield the positions of the windows of a pass. Shards are shuffled, their text is in order."""
        for file in generator.permutation(len(self._files)).tolist():
            yield from self._spans_of(file, config, generator, shortest=1 + (training and self._paper))

    def _spans_of(
        self, file: int, config: WindowConfig, generator: np.random.Generator, shortest: int
    ) -> Iterator[Span]:
        rows = self.rows(file)
        drawn_places = generator.integers(rows, size=self._streams) if config.partial_shuffle else ()
        places = tuple(map(int, drawn_places))
        begin = start = int(self._paper)
        while rows - start >= shortest:
            drawn = _length(config, generator)
            stop = min(rows, start + drawn)
            length = drawn if self._paper else stop - start
            yield Span(file, start, stop, start == begin, _scale(length, config), places)
            start = stop

    def window(self, span: Span) -> Window:
        """Read a window."""
        rows = self.rows(span.file)
        if span.places:
            return self._rotated(span, rows)
        streams = self._files[span.file][: rows * self._streams].reshape(self._streams, rows)
        targets = streams[:, span.start : span.stop].astype(np.int64)
        ends = np.concatenate(([self._begin], streams[:-1, -1]))
        before = streams[:, span.start - 1] if span.start else ends
        inputs = np.concatenate((before[:, None].astype(np.int64), targets[:, :-1]), axis=1)
        return Window(_steps(inputs), _steps(targets), span.first, span.scale)

    def _rotated(self, span: Span, rows: int) -> Window:
        """Read a window of a partially shuffled pass."""
        file, streams = self._files[span.file], np.arange(self._streams)[:, None]
        within = (np.array(span.places)[:, None] + np.arange(span.start, span.stop)) % rows  # (B, T)
        places = streams * rows + within
        inputs = np.where(places > 0, file[places - 1], self._begin).astype(np.int64)
        return Window(_steps(inputs), _steps(file[places].astype(np.int64)), span.first, span.scale)


class ReadHeads:
    """Streams that each read the whole text, from places spread over it (code of Melis et al. 2020).

    Heads begin at equidistant sentences. The first of these is drawn at random. Each head reads the whole
    text, wrapping round at its end, then begins again at its own sentence. A beginning, also the first, is
    moved by up to ``jitter`` sentences, drawn for each head and round. The position of a head depends only on
    the seed and the number of tokens read. Streams are never reset to a zero state. The text is kept in
    memory as a whole. MisfitError for fewer sentences than heads.
    """

    def __init__(self, files: Sequence[Ids], streams: int, eos: int, jitter: int, seed: int) -> None:
        self._text = np.concatenate(files) if len(files) > 1 else files[0]
        ends = np.flatnonzero(self._text == eos) + 1
        self._sentences = np.concatenate(([0], ends[ends < len(self._text)]))
        self._streams, self._eos, self._jitter, self._seed = streams, eos, jitter, seed
        if len(self._sentences) < streams:
            raise MisfitError(
                f'window.order = "read_heads": {len(self._sentences):,} sentences are too few for'
                f' train.batch_size = {streams} heads; lower it, or use window.order = "streams"',
                ["window.order", "train.batch_size"],
            )

    def spans(self, number: int, config: WindowConfig, generator: np.random.Generator) -> Iterator[Span]:
        """Yield the positions of the windows of a pass; ``start`` counts tokens of a head over all passes.

        In a pass, all heads together read the text about once. Windows of fixed length are full, unless
        the text of a head is shorter.
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
        """Read a window."""
        read = np.arange(max(0, span.start - 1), span.stop)
        tokens = self._text[self._places(read)].astype(np.int64)  # (B, T + 1), or (B, T) at the beginning
        if not span.start:
            tokens = np.concatenate((np.full((self._streams, 1), self._eos), tokens), axis=1)
        return Window(_steps(tokens[:, :-1]), _steps(tokens[:, 1:]), span.first, span.scale)

    def _places(self, read: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """Positions in the text of each head after ``read`` tokens, (B, len(read))."""
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
    """The factor on the learning rate of an update from a window of ``length`` tokens."""
    return length / config.length if config.rescale_lr else 1.0


def _length(config: WindowConfig, generator: np.random.Generator) -> int:
    """Number of tokens of a window: around ``length``, or sometimes around half of it."""
    if not config.random:
        return config.length
    middle = config.length if generator.random() >= config.half_share else config.length / 2
    drawn = max(config.shortest, int(generator.normal(middle, config.spread)))
    return min(drawn, config.length + config.max_delta) if config.max_delta else drawn


def longest(config: WindowConfig) -> int:
    """The maximum window length; without a limit, four standard deviations above ``length``."""
    if not config.random:
        return config.length
    unlikely = max(config.shortest, config.length + math.ceil(4 * config.spread))
    return min(unlikely, config.length + config.max_delta) if config.max_delta else unlikely


def mean_length(config: WindowConfig) -> float:
    """Approximate mean number of tokens of a window. Ignores the minimum and maximum lengths."""
    return config.length * (1 - 0.5 * config.half_share) if config.random else config.length
