"""Diversity of responses: distinct n-grams, length, loops, most common answer."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dialog.decoding.config import DecodeConfig
from dialog.metrics.bleu import Tokens
from lm.errors import visible

FEW = 20  # contexts; smaller evaluations get no warnings
LOOPING = 0.1  # share of looping responses that causes a warning
SAME_SHARE = 0.5  # share of contexts with the same answer that causes a warning


@dataclass(frozen=True)
class Diversity:
    """Diversity of the responses to each context (Gu et al. 2019, DialogWAE).

    ``intra_distinct_n`` is the share of distinct n-grams within a response, averaged over the responses of a
    context, then over contexts. ``inter_distinct_n`` is that share within all responses of a context
    together, averaged over contexts. A response without an n-gram has share 0, as in their program.
    ``mean_length`` (tokens), ``looping_share`` (of :func:`loops`), ``most_common_answer`` and its
    ``most_common_share`` use only the first, best response of each context.
    """

    intra_distinct_1: float
    inter_distinct_1: float
    intra_distinct_2: float
    inter_distinct_2: float
    mean_length: float
    looping_share: float
    most_common_share: float
    most_common_answer: Sequence[str]


def diversity(hypotheses: Sequence[Sequence[Tokens]]) -> Diversity:
    """Measure the diversity of the responses to each context."""
    best = [tuple(answers[0]) for answers in hypotheses]
    answer, count = Counter(best).most_common(1)[0]
    (intra_1, inter_1), (intra_2, inter_2) = (_distinct(hypotheses, order) for order in (1, 2))
    return Diversity(
        intra_distinct_1=intra_1,
        inter_distinct_1=inter_1,
        intra_distinct_2=intra_2,
        inter_distinct_2=inter_2,
        mean_length=sum(map(len, best)) / len(best),
        looping_share=sum(map(loops, best)) / len(best),
        most_common_share=count / len(best),
        most_common_answer=list(answer),
    )


def _distinct(hypotheses: Sequence[Sequence[Tokens]], order: int) -> tuple[float, float]:
    """Intra- and inter-distinct shares of n-grams of an order."""
    intra = inter = 0.0
    for answers in hypotheses:
        grams = [_grams(answer, order) for answer in answers]
        intra += sum(_share(found) for found in grams) / len(answers)
        inter += _share([gram for found in grams for gram in found])
    return intra / len(hypotheses), inter / len(hypotheses)


def warnings(
    found: Diversity, human: Diversity, contexts: int, decode: DecodeConfig, *, by_words: bool
) -> list[str]:
    """Warnings about looping or uniform responses of an evaluation, one line each, with the remedy.

    The share of loops is compared with that of the true responses of ``human``, which also contain some.
    ``by_words``: the tokens of the model are words, of which ``decode`` may forbid repeated trigrams.
    """
    if contexts < FEW:
        return []
    samples = decode.method == "sample"
    draw = "a higher --set decode.temperature" if samples else "--set decode.method=sample"
    forbid = by_words and not 0 < decode.no_repeat_ngram <= 3
    lines = []
    if found.looping_share >= LOOPING and found.looping_share > 2 * human.looping_share:
        lines.append(
            f"{found.looping_share:.0%} of the responses repeat themselves in a loop (true responses: "
            f"{human.looping_share:.0%}; intra-distinct-1 {found.intra_distinct_1:.2f}): "
            f"try {'--set decode.no_repeat_ngram=3' if forbid else draw}"
        )
    if found.most_common_share > SAME_SHARE:
        answer = visible(" ".join(found.most_common_answer)[:60])
        lines.append(
            f"{found.most_common_share:.0%} of the contexts have the same answer, '{answer}': "
            f"train longer, or try {draw}"
        )
    return lines


def loops(tokens: Tokens) -> bool:
    """True if some trigram occurs at least three times in a response.

    In Zhao et al.'s test split 9 % of the utterances contain a trigram twice, and 1 % three times.
    """
    return max(Counter(_grams(tokens, 3)).values(), default=0) >= 3


def _grams(tokens: Tokens, order: int) -> list[tuple[str, ...]]:
    return list(zip(*(tokens[i:] for i in range(order)), strict=False))


def _share(grams: Sequence[object]) -> float:
    return len(set(grams)) / len(grams) if grams else 0.0
