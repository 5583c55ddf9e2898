"""Nearest documents by tf-idf, as sparse matrices.

tf is the raw count, and idf = ln((1 + N) / (1 + df)) + 1 over all N documents. Similarity is the cosine.
These are the defaults of scikit-learn's ``TfidfVectorizer``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from scipy.sparse import csr_array

from lm.arrays import Floats, Ints


@dataclass
class Documents:
    """Documents as sparse tf-idf vectors. Add all documents and call :meth:`finish` before other methods."""

    split: Callable[[str], list[str]]
    _rows: list[list[Ints]] = field(default_factory=list)  # terms of each text of each document
    _terms: dict[str, int] = field(default_factory=dict)
    _texts: dict[str, Ints] = field(default_factory=dict)  # terms of each text, cached
    _idf: Floats = field(default_factory=lambda: np.empty(0))
    vectors: csr_array = field(init=False)  # (N, terms)

    def add(self, texts: Sequence[str]) -> None:
        """Append a document that consists of ``texts``."""
        for text in texts:
            if text not in self._texts:
                ids = [self._terms.setdefault(token, len(self._terms)) for token in self.split(text)]
                self._texts[text] = np.array(ids, dtype=np.int64)
        self._rows.append([self._texts[text] for text in texts])

    def finish(self) -> None:
        """Compute the idf of every term, and the vectors of all documents."""
        counts = self._counted(self._rows)
        frequency = np.bincount(counts.indices, minlength=len(self._terms))
        self._idf = np.log((1 + len(self._rows)) / (1 + frequency)) + 1
        self.vectors = self._weighted(counts)

    def vector(self, texts: Sequence[str]) -> csr_array:
        """The vector (1, terms) of any document, without unknown tokens."""
        known = [self._terms[token] for text in texts for token in self.split(text) if token in self._terms]
        return self._weighted(self._counted([[np.array(known, dtype=np.int64)]]))

    def _counted(self, rows: Sequence[Sequence[Ints]]) -> csr_array:
        ends = np.cumsum([0, *(sum(map(len, row)) for row in rows)])
        terms = np.concatenate([np.empty(0, np.int64), *chain.from_iterable(rows)])
        counts = csr_array((np.ones(len(terms)), terms, ends), shape=(len(rows), len(self._terms)))
        counts.sum_duplicates()
        return counts

    def _weighted(self, counts: csr_array) -> csr_array:
        """tf-idf values of documents, each normalised to length 1."""
        counts.data *= self._idf[counts.indices]
        lengths = np.sqrt(counts.power(2).sum(1))
        counts.data /= np.repeat(lengths, np.diff(counts.indptr))
        return counts


class Index:
    """Some documents by term, so that a search reads only those that share a term with its text."""

    def __init__(self, documents: Documents, members: Sequence[int]) -> None:
        self.members = members
        self._by_term = documents.vectors[members].T.tocsr()

    def ranked(self, vector: csr_array) -> list[int]:
        """Documents that share a term with ``vector``, nearest first. Ties keep the order of ``members``."""
        nearness = (vector @ self._by_term).toarray()[0]
        order = np.argsort(-nearness.round(12), kind="stable")
        return [self.members[row] for row in order[: np.count_nonzero(nearness)].tolist()]
