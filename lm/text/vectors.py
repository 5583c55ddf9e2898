"""Pretrained word vectors in text format, as GloVe and word2vec write them.

A line has a word and its numbers, separated by blanks. The first line may be a header of word2vec with the
number of words and the size. Of a word that occurs twice, the first vector counts.
"""

from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lm.disk.regular import open_regular
from lm.disk.storage import sha256_file
from lm.errors import DataError, visible
from lm.text.lines import InputLog, read_lines
from lm.text.vocabulary import Vocabulary

LARGEST = 1e4  # of a number; trained vectors stay below 100
VECTORS_HASH = "vectors_sha256"


@dataclass(frozen=True)
class WordVectors:
    """Vectors of words of a vocabulary: their ids (n,), the matrix (n, E), and a line on the coverage."""

    ids: NDArray[np.int64]
    matrix: NDArray[np.float32]
    coverage: str
    sha256: str


def read_vectors(path: Path, vocabulary: Vocabulary, size: int) -> WordVectors:
    """Read the vectors of the words of a vocabulary.

    Memory depends on the vocabulary, not on the file. Raises DataError, with file and line, for another size
    than ``size``, for anything that is not a text of vectors, and if no word is in the vocabulary.
    """
    known = {token: index for index, token in enumerate(vocabulary.tokens)}
    found: dict[int, NDArray[np.float32]] = {}
    words = 0
    with open_regular(path) as file:
        for number, line in read_lines(file, str(path), InputLog(command=None)):
            place, text = f"{visible(path)}:{number}", line.strip(" ")
            if number == 1 and _is_header(text):
                _require_size(int(text.split()[1]), size, place)
                continue
            if not words and text.count(" ") != size and (found_size := _numbers_at_end(text)):
                _require_size(found_size, size, place)
            words += 1
            fields = text.rsplit(" ", size)
            if len(fields) != size + 1 or (words == 1 and not _is_number(fields[-1])):
                raise DataError(
                    f"{place}: has fewer than {size} numbers ({visible(text[:40])}); choose a text file"
                    " of vectors"
                )
            index = known.get(fields[0])
            if index is not None and index not in found:
                found[index] = _numbers(fields[1:], place)
    if not found:
        raise DataError(
            f"{visible(path)}: none of its {words:,} words is in the vocabulary; choose vectors of the"
            " language and spelling of the training text"
        )
    ids = np.array(sorted(found), dtype=np.int64)
    return WordVectors(
        ids, np.stack([found[index] for index in ids.tolist()]), _coverage(ids, vocabulary), sha256_file(path)
    )


def _is_header(text: str) -> bool:
    fields = text.split()
    return len(fields) == 2 and all(
        field.isascii() and field.isdigit() and len(field) < 16 for field in fields
    )


def _numbers_at_end(text: str) -> int:
    """Number of numbers at the end of a line, whose word may contain blanks, as in GloVe."""
    return sum(1 for _ in takewhile(_is_number, reversed(text.split(" ")[1:])))


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _require_size(found: int, size: int, place: str) -> None:
    if found != size:
        raise DataError(
            f"{place}: a vector of {found:,} numbers, but the embedding has {size:,}; set"
            f" model.embedding_size = {found:,}, or choose other vectors"
        )


def _numbers(fields: list[str], place: str) -> NDArray[np.float32]:
    try:
        numbers = np.array([float(field) for field in fields], dtype=np.float64)
    except ValueError as error:
        raise DataError(f"{place}: {visible(str(error))[:80]}; choose a text file of vectors") from None
    if not (np.abs(numbers) <= LARGEST).all():
        raise DataError(f"{place}: a number is not finite or beyond {LARGEST:,.0f}; choose other vectors")
    return numbers.astype(np.float32)


def _coverage(ids: NDArray[np.int64], vocabulary: Vocabulary) -> str:
    """Shares of the vocabulary and of the training text that have a vector."""
    counts = np.asarray(vocabulary.counts, dtype=np.float64)
    share = counts[ids].sum() / max(1.0, counts.sum())
    return (
        f"model.vectors: {len(ids):,} of {len(counts):,} words of the vocabulary have a vector, and"
        f" {share:.1%} of the tokens in training"
    )
