"""Nearest documents by tf-idf, with inverted indices in numpy and without a dense matrix.

tf is the raw count, and idf = ln((1 + N) / (1 + df)) + 1 over all N documents. Similarity is the cosine.
These are the defaults of scikit-learn's ``TfidfVectorizer``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from lm.arrays import Floats, Ints


@dataclass
class Documents:
    """Documents as sparse tf-idf vectors. Add all documents and call :meth:`finish` before other methods."""

    split: Callable[[str], list[str]]
    rows: list[tuple[Ints, Ints]] = field(default_factory=list)  # terms and counts of each document
    _terms: dict[str, int] = field(default_factory=dict)
    _texts: dict[str, Ints] = field(default_factory=dict)  # terms of each text, cached
    _idf: Floats = field(default_factory=lambda: np.empty(0))

    def add(self, texts: Sequence[str]) -> None:
        """Append a document that consists of ``texts``."""
        for text in texts:
            if text not in self._texts:
                ids = [self._terms.setdefault(token, len(self._terms)) for token in self.split(text)]
                self._texts[text] = np.array(ids, dtype=np.int64)
        self.rows.append(_counted(np.concatenate([self._texts[text] for text in texts])))

    def finish(self) -> None:
        """Compute the idf of every term."""
        present = np.concatenate([terms for terms, _ in self.rows]) if self.rows else np.empty(0, np.int64)
        frequency = np.bincount(present, minlength=len(self._terms))
        self._idf = np.log((1 + len(self.rows)) / (1 + frequency)) + 1

    def weighted(self, terms: Ints, counts: Ints) -> Floats:
        """tf-idf values of a document, normalised to length 1."""
        values: Floats = counts * self._idf[terms]
        return values / max(float(np.linalg.norm(values)), 1e-12)

    def vector(self, texts: Sequence[str]) -> tuple[Ints, Floats]:
        """Terms and tf-idf values of any document, without unknown tokens."""
        ids = [self._terms[token] for text in texts for token in self.split(text) if token in self._terms]
        terms, counts = _counted(np.array(ids, dtype=np.int64))
        return terms, self.weighted(terms, counts)


def _counted(ids: Ints) -> tuple[Ints, Ints]:
    """Distinct terms and their counts."""
    terms, counts = np.unique(ids, return_counts=True)
    return terms, counts.astype(np.int64)


class Index:
    """Inverted index of some documents: for each term, the documents that contain it and their weights."""

    def __init__(self, documents: Documents, members: Sequence[int]) -> None:
        self.members = members
        chosen = [documents.rows[row] for row in members]
        terms = np.concatenate([t for t, _ in chosen])
        values = np.concatenate([documents.weighted(t, c) for t, c in chosen])
        owners = np.repeat(np.arange(len(chosen)), [len(t) for t, _ in chosen])
        order = np.argsort(terms, kind="stable")
        self._owners, self._values = owners[order], values[order]
        known, starts = np.unique(terms[order], return_index=True)
        ends = [*starts[1:].tolist(), len(terms)]
        self._spans = dict(zip(known.tolist(), zip(starts.tolist(), ends, strict=True), strict=True))

    def ranked(self, vector: tuple[Ints, Floats]) -> list[int]:
        """Documents that share a term with ``vector``, nearest first. Ties keep the order of ``members``."""
        hits = [
            (self._spans[t], v)
            for t, v in zip(*(x.tolist() for x in vector), strict=True)
            if t in self._spans
        ]
        if not hits:
            return []
        owners = np.concatenate([self._owners[start:end] for (start, end), _ in hits])
        values = np.concatenate([self._values[start:end] * value for (start, end), value in hits])
        nearness = np.bincount(owners, weights=values, minlength=len(self.members))
        order = np.argsort(-nearness.round(12), kind="stable")
        return [self.members[row] for row in order[: np.count_nonzero(nearness)].tolist()]
