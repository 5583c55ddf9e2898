"""Selection of responses among the candidates of a search: by expected similarity, or by other scores."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Hypothesis
from lm.steps import Check, unchecked

Similarity = Callable[[str, str], float]


def search_of(config: DecodeConfig) -> DecodeConfig:
    """The config of the search for candidates, which keeps ``candidates`` instead of ``nbest``."""
    return config.model_copy(update={"nbest": config.searched})


def best_by(found: Sequence[Hypothesis], scores: Sequence[float], nbest: int) -> list[Hypothesis]:
    """The different hypotheses of the highest scores, which become theirs; finished ones come first."""
    scored = [replace(one, score=score) for one, score in zip(found, scores, strict=True)]
    ordered = sorted(scored, key=lambda one: one.order)
    return list({(one.tokens, one.finished): one for one in ordered}.values())[:nbest]


def expected_similarities(
    texts: Sequence[str], similarity: Similarity, check: Check = unchecked
) -> list[float]:
    """Mean similarity of each text to all texts, itself included: its negative Bayes risk.

    ``check`` is called before every text, and may raise to end the work.

    With samples of a model as texts, the best is the minimum Bayes risk decision of Eikema and Aziz (2020).
    """
    counts = {text: texts.count(text) for text in texts}
    mean = {}
    for text in counts:
        check()
        total = sum(count * similarity(text, other) for other, count in counts.items())
        mean[text] = total / len(texts)
    return [mean[text] for text in texts]


def similarity_of(metric: str) -> Similarity:
    """Sentence BLEU with effective order, or chrF, of sacreBLEU: 0 to 100."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    judge = BLEU(effective_order=True) if metric == "bleu" else CHRF()

    def similarity(text: str, other: str) -> float:
        return 100.0 if text == other else float(judge.sentence_score(text, [other]).score)

    return similarity
