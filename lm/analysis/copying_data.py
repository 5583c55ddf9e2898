"""The sequences of the reverse copy task: drawn at random, or those that ``lm prepare reverse-copy`` wrote.

L length · B sequences · V symbols.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lm.errors import DataError
from lm.language.corpus import load_split
from lm.language.sources import SPLITS
from lm.lines import visible
from lm.text import EOS_WORD, Codec

BATCH, HELD_OUT = 64, 512  # sequences of an update; of a validation or test set that is drawn
BAR = "|"  # between a sequence and its reverse


@dataclass(frozen=True)
class Corpus:
    """Sequences of one length over V symbols: train, valid and test, (L, ·) each."""

    train: Tensor
    valid: Tensor
    test: Tensor
    vocab: int
    fingerprints: tuple[str, ...]  # of the splits

    @property
    def length(self) -> int:
        """L."""
        return self.train.shape[0]

    def batches(self, random: torch.Generator) -> Iterator[Tensor]:
        """(L, B) without end, every pass in another order."""
        while True:
            for chosen in torch.randperm(self.train.shape[1], generator=random).split(BATCH):
                yield self.train[:, chosen]


class Drawn:
    """Sequences that are drawn when they are wanted, those of validation and test first."""

    def __init__(self, vocab: int, length: int, random: torch.Generator) -> None:
        self._vocab, self._length = vocab, length
        self.valid, self.test = (self._draw(HELD_OUT, random) for _ in range(2))

    def batches(self, random: torch.Generator) -> Iterator[Tensor]:
        """(L, B) without end, none of them twice."""
        while True:
            yield self._draw(BATCH, random)

    def _draw(self, count: int, random: torch.Generator) -> Tensor:
        return torch.randint(self._vocab, (self._length, count), generator=random)


def read_corpora(folders: Sequence[str]) -> tuple[Corpus, ...]:
    """The corpora of folders that ``lm prepare reverse-copy`` wrote, shortest sequences first.

    Raises:
        DataError: a folder holds something else; two have the same length, or different symbols.
        StorageError: a folder is damaged.
    """
    found = sorted(map(_read, folders), key=lambda corpus: corpus.length)
    lengths, symbols = [corpus.length for corpus in found], [corpus.vocab for corpus in found]
    if len(set(lengths)) < len(lengths) or len(set(symbols)) > 1:
        raise DataError(
            f"--data: sequences of {lengths} tokens over {symbols} symbols; each folder needs another"
            " --length and the same --vocab"
        )
    return tuple(found)


def _read(folder: str) -> Corpus:
    for split in SPLITS:
        if not Path(folder, split).is_dir():
            raise DataError(
                f"{visible(folder)}: no folder of `lm prepare reverse-copy`, which has {', '.join(SPLITS)}"
            )
    codec = Codec.load(Path(folder))
    words = codec.vocabulary.tokens
    symbols = np.cumsum([word not in (BAR, EOS_WORD) for word in words]) - 1  # numbers of the words that are
    splits, fingerprints = [], []
    for split in SPLITS:
        stored = load_split(str(Path(folder, split)), codec)
        lines = _lines(stored.ids(), words)
        if lines is None:
            raise DataError(
                f"{visible(folder)}/{split}: its lines are not sequences of one length, each with a bar and"
                " its reverse, as `lm prepare reverse-copy` makes them"
            )
        splits.append(torch.from_numpy(symbols[lines].T.copy()))
        fingerprints.append(stored.fingerprint)
    if len({len(split) for split in splits}) > 1:
        raise DataError(
            f"{visible(folder)}: its splits have sequences of different lengths; prepare it again"
        )
    train, valid, test = splits
    return Corpus(train, valid, test, int(symbols[-1]) + 1, tuple(fingerprints))


def _lines(ids: np.ndarray, words: Sequence[str]) -> np.ndarray | None:
    """The sequences (lines, L) of running text, if it has the layout of the task."""
    bar, end = (words.index(mark) if mark in words else -1 for mark in (BAR, EOS_WORD))
    length = int((ids == bar).argmax()) if len(ids) else 0
    if length == 0 or len(ids) % (2 * length + 2):
        return None
    lines = ids.reshape(-1, 2 * length + 2)
    sequences, reverses = lines[:, :length], lines[:, length + 1 : -1]
    marked = (lines[:, length] == bar).all() and (lines[:, -1] == end).all()
    plain = not np.isin(sequences, (bar, end)).any()
    return sequences if marked and plain and (reverses == sequences[:, ::-1]).all() else None
