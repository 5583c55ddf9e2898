"""Sentence BLEU with smoothing method 7, as precision and recall over several hypotheses and references.

The definition is that of published response-generation results (Zhao et al. 2017 and after). Every hypothesis
h_i of a context is scored against every reference r_j: s_ij = BLEU-n(r_j, h_i). The reported values are means
over contexts of

    precision = mean_i max_j s_ij          recall = mean_j max_i s_ij.

Method 7 of Chen and Cherry (2014) is their method 4 followed by method 5. Method 4 gives orders without a
match a small precision. Method 5 averages the precisions of neighbouring orders,

    p'_n = (p'_{n-1} + p_n + p_{n+1}) / 3,   p'_0 = p_1 + 1,

where the last neighbour is the 5-gram precision, regardless of the number of orders. Scores may exceed 1: a
perfect match of eight tokens has BLEU-1 4/3.

NLTK changed method 4 over time, so orders without a match have two *variants*. Order i counts from 0, c
counts the orders without a match from 1, and L is the number of tokens in the hypothesis:

    nltk     NLTK ≥ 3.6:  ln L / (5 · 2^c) / number of n-grams
    legacy   NLTK ≤ 3.4:  1 / (i + 5 / ln L)               the scale of results published around 2018

The *weights* of BLEU-n have two conventions:

    padded   (1/n, …, 1/n, 0, …) of length 4 · method 5 sees orders 1 to 4
    short    (1/n, …, 1/n) of length n · method 5 sees orders 1 to n

Edge cases, all counted in :attr:`Overlaps.edge_cases`:

* No common token, as with every empty hypothesis or reference: 0, in all versions.
* A hypothesis of one token: ln L = 0. ``nltk`` leaves the precisions of orders 2 to 4 at 0 before method 5.
  NLTK ≤ 3.4 divides by zero. Zhao et al.'s code turns that exception into a score of 0, as ``legacy`` does.
  With ``short`` weights BLEU-1 is defined, since it has no order without a match.

P pairs of a hypothesis and a reference of one context · C contexts · orders 1 … 5 of n-grams.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from lm.arrays import Floats, Ints
from lm.errors import DataError

Variant = Literal["nltk", "legacy"]
NgramWeights = Literal["padded", "short"]
Tokens = Sequence[str]

MAX_ORDER = 4
_SEEN = MAX_ORDER + 1  # method 5 needs one order more
_K = 5.0  # Chen and Cherry's constant of method 4

_Key = tuple[str, ...]


@dataclass(frozen=True)
class Overlaps:
    """Counts of n-grams shared by hypotheses and references, from which sentence BLEU is computed.

    Pairs are ordered by context, then hypothesis, then reference. ``shapes`` holds the number of hypotheses
    and of references of each context.
    """

    matches: Ints  # (P, 5) clipped matches of each order
    hypothesis_lengths: Ints  # (P,)
    reference_lengths: Ints  # (P,)
    shapes: tuple[tuple[int, int], ...]  # C × (hypotheses, references)
    edge_cases: dict[str, int]

    @property
    def legacy_undefined_share(self) -> float:
        """Share of the pairs with a match that NLTK ≤ 3.4 cannot score, and ``legacy`` scores 0."""
        return self.edge_cases["legacy_undefined_pairs"] / max(1, int((self.matches[:, 0] > 0).sum()))


@dataclass(frozen=True)
class BleuScore:
    """Means of precision and recall over contexts, and F1 of the two means."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class ContextScores:
    """Precision and recall of BLEU-1 … BLEU-4 for each context."""

    precision: Floats  # (C, 4)
    recall: Floats  # (C, 4)

    def summary(self) -> dict[str, BleuScore]:
        """BLEU by order, "1" to "4"."""
        table = {}
        means = zip(self.precision.mean(0).tolist(), self.recall.mean(0).tolist(), strict=True)
        for order, (precision, recall) in enumerate(means, start=1):
            both = precision + recall
            f1 = 2 * precision * recall / both if both else 0.0
            table[str(order)] = BleuScore(precision, recall, f1)
        return table


def count_overlaps(
    hypotheses: Sequence[Sequence[Tokens]], references: Sequence[Sequence[Tokens]]
) -> Overlaps:
    """Compare every hypothesis of a context with every reference of that context.

    DataError for no context, different numbers of contexts, a context without a hypothesis or reference, or
    text instead of a list of tokens.
    """
    left, right = token_lists(hypotheses, "hypothesis"), token_lists(references, "reference")
    if len(left) != len(right):
        raise DataError(
            f"{len(left)} contexts with hypotheses, but {len(right)} with references; give one of each"
        )
    matches: list[list[int]] = []
    lengths: list[tuple[int, int]] = []
    undefined = 0
    for answers, targets in zip(left, right, strict=True):
        for answer in answers:
            for target in targets:
                found = _matches(answer, target)
                undefined += len(answer) == 1 and found[0] > 0
                matches.append(found)
                lengths.append((len(answer), len(target)))
    edges = {
        "empty_hypotheses": sum(not answer for answers in left for answer in answers),
        "single_token_hypotheses": sum(len(answer) == 1 for answers in left for answer in answers),
        "empty_references": sum(not target for targets in right for target in targets),
        "legacy_undefined_pairs": undefined,
    }
    shapes = tuple((len(answers), len(targets)) for answers, targets in zip(left, right, strict=True))
    table = np.array(lengths, dtype=np.int64)
    return Overlaps(np.array(matches, dtype=np.int64), table[:, 0], table[:, 1], shapes, edges)


def bleu_by_context(
    overlaps: Overlaps, variant: Variant = "nltk", weights: NgramWeights = "padded"
) -> ContextScores:
    """Precision and recall of every context, for a variant and weights as defined in the module docstring."""
    scores = pair_scores(overlaps, variant, weights)  # (P, 4)
    precision = np.empty((len(overlaps.shapes), MAX_ORDER))
    recall = np.empty_like(precision)
    start = 0
    for context, (hypotheses, references) in enumerate(overlaps.shapes):
        end = start + hypotheses * references
        block = scores[start:end].reshape(hypotheses, references, MAX_ORDER)
        precision[context] = block.max(1).mean(0)
        recall[context] = block.max(0).mean(0)
        start = end
    return ContextScores(precision, recall)


def pair_scores(overlaps: Overlaps, variant: Variant = "nltk", weights: NgramWeights = "padded") -> Floats:
    """BLEU-1 … BLEU-4 of every pair, (P, 4)."""
    lengths = overlaps.hypothesis_lengths
    grams = np.maximum(1, lengths[:, None] - np.arange(_SEEN))  # (P, 5) n-grams in the hypothesis
    exact = overlaps.matches / grams
    precisions, last = _method4(exact[:, :MAX_ORDER], grams[:, :MAX_ORDER], lengths, variant), exact[:, -1:]
    means = np.empty_like(precisions)  # (P, 4) mean log precision of the first n orders
    for order in range(1, MAX_ORDER + 1):
        seen = MAX_ORDER if weights == "padded" else order
        means[:, order - 1] = np.log(_method5(precisions[:, :seen], last))[:, :order].mean(1)
        if variant == "legacy" and seen > 1:
            means[lengths == 1, order - 1] = -np.inf  # undefined
    shortfall = 1 - overlaps.reference_lengths / np.maximum(1, lengths)
    scores = np.exp(means + np.minimum(0, shortfall)[:, None])
    scores[overlaps.matches[:, 0] == 0] = 0.0
    return scores


def sentence_bleu(
    reference: Tokens,
    hypothesis: Tokens,
    order: int = MAX_ORDER,
    variant: Variant = "nltk",
    weights: NgramWeights = "padded",
) -> float:
    """BLEU-``order`` (1 to 4) of one hypothesis against one reference.

    Raises DataError for text instead of tokens, ValueError for another order.
    """
    if not 1 <= order <= MAX_ORDER:
        raise ValueError(f"order = {order}: must be 1 to {MAX_ORDER}")
    overlaps = count_overlaps([[hypothesis]], [[reference]])
    return float(pair_scores(overlaps, variant, weights)[0, order - 1])


def _method4(exact: Floats, grams: Ints, lengths: Ints, variant: Variant) -> Floats:
    """Replace the precisions (P, 4) of orders without a match. The replacement is 0 at L = 1."""
    missing = exact == 0
    log_length = np.log(np.maximum(1, lengths))[:, None]
    if variant == "nltk":
        replacement = log_length / (_K * 2.0 ** missing.cumsum(1)) / grams
    else:
        replacement = log_length / (np.arange(exact.shape[1]) * log_length + _K)
    return np.where(missing, replacement, exact)


def _method5(precisions: Floats, last: Floats) -> Floats:
    """Average each of (P, n) precisions with its neighbours. ``last`` (P, 1) is the neighbour of the n-th."""
    following = np.concatenate((precisions[:, 1:], last), axis=1)
    smoothed = np.empty_like(precisions)
    before = precisions[:, 0] + 1
    for order in range(precisions.shape[1]):
        before = smoothed[:, order] = (before + precisions[:, order] + following[:, order]) / 3
    return smoothed


def token_lists(groups: Sequence[Sequence[Tokens]], kind: str) -> list[list[_Key]]:
    """Check the token lists of each context and convert them to tuples. ``kind`` is hypothesis or reference.

    Raises DataError for no context, a context without a list, or text instead of a list.
    """
    if not _is_list(groups) or not groups:
        raise DataError(f"no context with a {kind}; give token lists for at least one context")
    for number, group in enumerate(groups):
        if not _is_list(group):
            raise DataError(
                f"context {number}: {group!r:.60} is not a list; give a list of tokens for each {kind}"
            )
        if not group:
            raise DataError(f"context {number} has no {kind}; add one or remove the context")
        for tokens in group:
            if not _is_list(tokens) or not all(isinstance(token, str) for token in tokens):
                raise DataError(
                    f"context {number}: {kind} {tokens!r:.60} is not a list of tokens; tokenize it"
                )
    return [[tuple(tokens) for tokens in group] for group in groups]


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


@lru_cache(maxsize=32768)
def _ngrams(tokens: _Key, order: int) -> dict[_Key, int]:
    return Counter(zip(*(tokens[i:] for i in range(order)), strict=False))


def _matches(hypothesis: _Key, reference: _Key) -> list[int]:
    """Clipped matches of each order: an n-gram counts at most as often as in the reference."""
    found = [0] * _SEEN
    for order in range(1, _SEEN + 1):
        limits = _ngrams(reference, order)
        shared = sum(min(n, limits[gram]) for gram, n in _ngrams(hypothesis, order).items() if gram in limits)
        if not shared:
            break  # a longer common n-gram would contain one of this order
        found[order - 1] = shared
    return found
