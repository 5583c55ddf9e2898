"""Sequences of the reverse copy task: random ones, or a corpus of ``lm prepare reverse-copy``.

L length · B sequences · V symbols.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lm.config.named_data import SPLITS
from lm.disk.jsonfile import read_json
from lm.errors import ConfigError, DataError, StorageError, visible
from lm.language.config import DataConfig
from lm.language.corpora.corpus import load_codec, load_split
from lm.language.corpora.sources import COPIES
from lm.text.prepared_folder import MANIFEST
from lm.text.tokenizers import EOS_WORD

BATCH, HELD_OUT = 64, 512  # sequences per update; sequences of a random validation or test set
BAR = "|"  # between a sequence and its reverse
_LIMIT = 1 << 20  # bytes of a manifest


@dataclass(frozen=True)
class Corpus:
    """Sequences of one length over V symbols: train, valid and test, each (L, ·) int32."""

    folder: str
    vocab: int
    train: Tensor
    valid: Tensor
    test: Tensor
    fingerprints: tuple[str, ...]  # of the splits

    @property
    def length(self) -> int:
        """L."""
        return self.train.shape[0]

    def batches(self, random: torch.Generator) -> Iterator[Tensor]:
        """Yield batches (L, B) endlessly, in a new order at every pass."""
        while True:
            for chosen in torch.randperm(self.train.shape[1], generator=random).split(BATCH):
                yield self.train[:, chosen].long()


class Drawn:
    """Random sequences, drawn on demand, with validation and test sets drawn first."""

    def __init__(self, vocab: int, length: int, random: torch.Generator) -> None:
        self._vocab, self._length = vocab, length
        self.valid, self.test = (self._draw(HELD_OUT, random) for _ in range(2))

    def batches(self, random: torch.Generator) -> Iterator[Tensor]:
        """Yield newly drawn batches (L, B) endlessly."""
        while True:
            yield self._draw(BATCH, random)

    def _draw(self, count: int, random: torch.Generator) -> Tensor:
        return torch.randint(self._vocab, (self._length, count), generator=random)


def read_corpora(folders: Sequence[str]) -> tuple[Corpus, ...]:
    """Read folders of ``lm prepare reverse-copy``, ordered by the length of their sequences.

    Raises:
        ConfigError: two have the same length, or different V.
        DataError: a folder is foreign or damaged.
    """
    found = sorted(map(_read, folders), key=lambda corpus: corpus.length)
    lengths, sizes = [corpus.length for corpus in found], [corpus.vocab for corpus in found]
    if len(set(lengths)) < len(lengths) or len(set(sizes)) > 1:
        made = ", ".join(f"{visible(c.folder)} (--length {c.length} --vocab {c.vocab})" for c in found)
        raise ConfigError(f"--data: {made}; each folder needs another --length and the same --vocab")
    return tuple(found)


def _read(folder: str) -> Corpus:
    length, vocab = _made_with(Path(folder))
    codec = load_codec(DataConfig(train=f"{folder}/train"))
    words = codec.vocabulary.tokens
    symbols = np.array([_number(word, vocab) for word in words], np.int32)
    bar, end = (words.index(mark) if mark in words else -1 for mark in (BAR, EOS_WORD))
    splits, fingerprints = [], []
    for split in SPLITS:
        stored = load_split(f"{folder}/{split}", codec)
        ids = np.concatenate([np.empty(0, np.int32), *stored.files])
        splits.append(_sequences(ids, length, symbols, (bar, end), f"{visible(folder)}/{split}"))
        fingerprints.append(stored.fingerprint)
    train, valid, test = splits
    return Corpus(folder, vocab, train, valid, test, tuple(fingerprints))


def _number(word: str, vocab: int) -> int:
    """Symbol of a word, or -1 if it is not a number from 0 to V − 1."""
    return int(word) if word.isdecimal() and len(word) <= len(str(vocab)) and int(word) < vocab else -1


def _made_with(folder: Path) -> tuple[int, int]:
    """--length and --vocab of ``lm prepare reverse-copy``, from the manifest."""
    try:
        manifest: Any = read_json(folder / MANIFEST, limit=_LIMIT)
    except StorageError:
        manifest = None
    match manifest:
        case {
            "source": source,
            "options": {
                "read": {"length": int(length), "vocab": int(vocab)},
                "tokenizer": "auto" | "whitespace",
                "vocab_size": 0,
            },
        } if source == COPIES and length > 0 and 1 < vocab <= 2**31:
            return length, vocab
    raise DataError(
        f"{folder}: not a folder of `lm prepare reverse-copy --length L --vocab V` with the default"
        " tokenizer and vocabulary; write one with --out"
    )


def _sequences(
    ids: np.ndarray, length: int, symbols: np.ndarray, marks: tuple[int, int], shown: str
) -> Tensor:
    """Sequences (L, ·) of running text, without their reverses."""
    lines = ids[: len(ids) - len(ids) % (2 * length + 2)].reshape(-1, 2 * length + 2)
    sequences, reverses = symbols[lines[:, :length]], symbols[lines[:, length + 1 : -1]]
    whole = lines.size == len(ids) > 0 and (lines[:, [length, -1]] == marks).all()
    if not whole or (sequences < 0).any() or (reverses != sequences[:, ::-1]).any():
        raise DataError(
            f"{shown}: a line is not a sequence, a bar and the reverse, since the file is damaged or train"
            " lacks a symbol; prepare it again, with a smaller --vocab if it is undamaged"
        )
    return torch.from_numpy(np.ascontiguousarray(sequences.T))
