"""Part of a text on disk: its words, and the text as numbers of these words, before the vocabulary is known.

::

    PART/train.ids …    numbers of words in the order of their first appearance, little-endian int32
    PART/words.json     for each split the words in this order, with their counts
    PART/report.json    for each split its lines, its characters and the number of its dropped lines
    PART/tokenizer.model    a trained tokenizer

"""

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.disk.jsonfile import read_json
from lm.language.corpora.survey import SplitCounts, TokenLine
from lm.text.lines import Dropped
from lm.text.prepared_folder import read_report
from lm.text.tokenizers import EOS_WORD
from lm.text.vocabulary import Vocabulary

_WORDS = "words.json"
_CHUNK = 1 << 16  # tokens


class _Numbers(dict[str, int]):
    """Words numbered in the order of their first appearance."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


def store_text(path: Path, lines: Iterable[TokenLine]) -> SplitCounts:
    """Write a text as numbers of its words. Return its counts, with the words in the order of the numbers."""
    numbers, counts, ids = _Numbers(), SplitCounts(), array("i")
    totals = np.zeros(0, np.int64)
    with path.open("xb") as file:

        def flush() -> None:
            nonlocal totals, ids
            totals = np.concatenate((totals, np.zeros(len(numbers) - len(totals), np.int64)))
            np.add.at(totals, np.frombuffer(ids, np.int32), 1)
            file.write(np.frombuffer(ids, np.int32).astype("<i4", copy=False).tobytes())
            ids = array("i")

        for _, line, tokens in lines:
            ids.extend([numbers[token] for token in tokens])
            counts.characters += line.characters
            if line.ends:
                ids.append(numbers[EOS_WORD])
                counts.lines += 1
            if len(ids) >= _CHUNK:
                flush()
        flush()
    counts.words = Counter(dict(zip(numbers, totals.tolist(), strict=True)))
    return counts


def store_words(folder: Path, counts: Mapping[str, SplitCounts]) -> None:
    """Write the words of all splits of a part, with their counts."""
    words = {split: list(found.words.items()) for split, found in counts.items()}
    (folder / _WORDS).write_text(json.dumps(words), encoding="ascii")  # unlike write_json, in C


class StoredPart:
    """The texts of a part, with the numbers of their words."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.report, self._dropped = read_report(folder)
        words: Any = read_json(folder / _WORDS, limit=(folder / _WORDS).stat().st_size)
        self._words = {split: dict(map(tuple, pairs)) for split, pairs in words.items()}

    def counts(self, split: str) -> SplitCounts:
        """Counts of a split, with the words in the order of their numbers."""
        about = self.report[split]
        return SplitCounts(Counter(self._words[split]), about["lines"], about["characters"])

    def dropped(self, split: str) -> list[Dropped]:
        """Dropped lines of a split. Those of all splits are stored together, in their order."""
        before = 0
        for other, about in self.report.items():
            if other == split:
                return self._dropped[before : before + about["dropped"]]
            before += about["dropped"]
        raise KeyError(split)

    def ids(
        self, split: str, vocabulary: Vocabulary, dtype: type[np.integer]
    ) -> Iterator[NDArray[np.integer]]:
        """Yield the token ids of a split in chunks."""
        ids = np.array(vocabulary.ids(self._words[split]), dtype)
        with (self._folder / f"{split}.ids").open("rb") as file:
            while block := file.read(4 * _CHUNK):
                yield ids[np.frombuffer(block, "<i4")]


def merged(parts: Sequence[StoredPart], split: str) -> SplitCounts:
    """Counts of a split over all parts, with the words in the order of their first appearance in the text."""
    total = SplitCounts()
    for found in (part.counts(split) for part in parts):
        total.words.update(found.words)
        total.lines += found.lines
        total.characters += found.characters
    return total
