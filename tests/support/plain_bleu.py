"""Sentence BLEU by NLTK, and by its old formula in plain words."""

import math


def nltk_bleu(reference: list[str], hypothesis: list[str], order: int, weights: str) -> float:
    from nltk.translate.bleu_score import SmoothingFunction
    from nltk.translate.bleu_score import sentence_bleu as reference_bleu

    shares = (1 / order,) * order + ((0.0,) * (4 - order) if weights == "padded" else ())
    return float(
        reference_bleu([reference], hypothesis, shares, smoothing_function=SmoothingFunction().method7)
    )


def legacy_bleu(reference: list[str], hypothesis: list[str], order: int, weights: str) -> float:
    """NLTK 3.4's method 4 and 5, written out plainly; ZeroDivisionError where it had one."""

    def precision(n: int) -> tuple[int, int]:
        grams = [tuple(hypothesis[i : i + n]) for i in range(len(hypothesis) - n + 1)]
        pool = [tuple(reference[i : i + n]) for i in range(len(reference) - n + 1)]
        return sum(min(grams.count(g), pool.count(g)) for g in set(grams)), max(1, len(grams))

    if not precision(1)[0]:
        return 0.0
    fractions = [precision(n) for n in range(1, (4 if weights == "padded" else order) + 1)]
    smooth = [m / d if m else 1 / (i + 5 / math.log(len(hypothesis))) for i, (m, d) in enumerate(fractions)]
    following = [*smooth[1:], precision(5)[0] / precision(5)[1]]
    averaged, before = [], smooth[0] + 1
    for own, after in zip(smooth, following, strict=True):
        before = (before + own + after) / 3
        averaged.append(before)
    brevity = math.exp(min(0.0, 1 - len(reference) / len(hypothesis)))
    return brevity * math.exp(sum(math.log(p) for p in averaged[:order]) / order)
