"""How varied responses are: distinct n-grams, length, and how often the same answer comes."""

from collections import Counter
from collections.abc import Sequence

from dialog.bleu import Tokens


def diversity(hypotheses: Sequence[Sequence[Tokens]]) -> dict[str, float | list[str]]:
    """Variety of the responses to each context.

    ``intra_distinct_n`` is the share of distinct n-grams within a response, averaged over the responses of a
    context and then over contexts; ``inter_distinct_n`` the same share within all responses of a context
    taken together, averaged over contexts (Gu et al. 2019, DialogWAE). A response without an n-gram has
    share 0, as in their program. ``mean_length`` (tokens), ``most_common_answer`` and its
    ``most_common_share`` are those of each context's first, best response.
    """
    best = [tuple(answers[0]) for answers in hypotheses]
    answer, count = Counter(best).most_common(1)[0]
    result: dict[str, float | list[str]] = {}
    for order in (1, 2):
        intra = inter = 0.0
        for answers in hypotheses:
            grams = [list(zip(*(answer[i:] for i in range(order)), strict=False)) for answer in answers]
            intra += sum(_share(found) for found in grams) / len(answers)
            inter += _share([gram for found in grams for gram in found])
        result[f"intra_distinct_{order}"] = intra / len(hypotheses)
        result[f"inter_distinct_{order}"] = inter / len(hypotheses)
    return result | {
        "mean_length": sum(map(len, best)) / len(best),
        "most_common_share": count / len(best),
        "most_common_answer": list(answer),
    }


def _share(grams: Sequence[object]) -> float:
    return len(set(grams)) / len(grams) if grams else 0.0
