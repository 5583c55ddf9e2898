"""Diversity of responses: distinct n-grams, length, loops, most common answer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dialog.metrics.bleu import Tokens
from lm.errors import visible

FEW = 20  # contexts; smaller evaluations get no warnings
LOOPING, SAME_SHARE = (
    0.1,
    0.5,
)  # shares that cause a warning: of looping responses, of contexts with one answer


def diversity(hypotheses: Sequence[Sequence[Tokens]]) -> dict[str, float | list[str]]:
    """Measure the diversity of the responses to each context (Gu et al. 2019, DialogWAE).

    ``intra_distinct_n`` is the share of distinct n-grams within a response, averaged over the responses of a
    context, then over contexts. ``inter_distinct_n`` is that share within all responses of a context
    together, averaged over contexts. A response without an n-gram has share 0, as in their program.
    ``mean_length`` (tokens), ``looping_share`` (of :func:`loops`), ``most_common_answer`` and its
    ``most_common_share`` use only the first, best response of each context.
    """
    best = [tuple(answers[0]) for answers in hypotheses]
    answer, count = Counter(best).most_common(1)[0]
    result: dict[str, float | list[str]] = {}
    for order in (1, 2):
        intra = inter = 0.0
        for answers in hypotheses:
            grams = [_grams(answer, order) for answer in answers]
            intra += sum(_share(found) for found in grams) / len(answers)
            inter += _share([gram for found in grams for gram in found])
        result[f"intra_distinct_{order}"] = intra / len(hypotheses)
        result[f"inter_distinct_{order}"] = inter / len(hypotheses)
    return result | {
        "mean_length": sum(map(len, best)) / len(best),
        "looping_share": sum(map(loops, best)) / len(best),
        "most_common_share": count / len(best),
        "most_common_answer": list(answer),
    }


def warnings(result: Mapping[str, Any]) -> list[str]:
    """Warnings about looping or uniform responses of an evaluation, one line each, with the remedy.

    The share of loops is compared with that of the true responses, which also contain some.
    """
    if result["contexts"] < FEW:
        return []
    found = []
    looping, human = result["looping_share"], result["yardsticks"]["true_response"]["looping_share"]
    if looping >= LOOPING and looping > 2 * human:
        found.append(
            f"{looping:.0%} of the responses repeat themselves in a loop (true responses: {human:.0%}; "
            f"intra-distinct-1 {result['intra_distinct_1']:.2f}): try --set decode.no_repeat_ngram=3"
        )
    if (share := result["most_common_share"]) > SAME_SHARE:
        answer = visible(" ".join(result["most_common_answer"])[:60])
        found.append(
            f"{share:.0%} of the contexts have the same answer, '{answer}': "
            "train longer, or try --set decode.method=sample"
        )
    return found


def loops(tokens: Tokens) -> bool:
    """True if some trigram occurs at least three times in a response.

    In Zhao et al.'s test split 9 % of the utterances contain a trigram twice, and 1 % three times.
    """
    return max(Counter(_grams(tokens, 3)).values(), default=0) >= 3


def _grams(tokens: Tokens, order: int) -> list[tuple[str, ...]]:
    return list(zip(*(tokens[i:] for i in range(order)), strict=False))


def _share(grams: Sequence[object]) -> float:
    return len(set(grams)) / len(grams) if grams else 0.0
