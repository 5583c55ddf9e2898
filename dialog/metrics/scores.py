"""Scores of generated responses against references, with baselines for comparison (yardsticks)."""

import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dialog.metrics.bleu import NgramWeights, Tokens, Variant, bleu_by_context, count_overlaps, token_lists
from dialog.metrics.distinct import diversity
from lm import __version__
from lm.runs.evaluations import Result

CONSTANT_ANSWERS = ("uh-huh", "yeah", "right", "oh", "okay")
SAID = 0.01  # share of the true responses that a constant answer is, to be a yardstick for a corpus
BLEU_VERSIONS: dict[str, tuple[Variant, NgramWeights]] = {
    "bleu": ("nltk", "padded"),
    "bleu_legacy": ("legacy", "padded"),
    "bleu_short": ("nltk", "short"),
    "bleu_legacy_short": ("legacy", "short"),
}
_VARIANTS = {"nltk": "NLTK 3.6 or later", "legacy": "NLTK 3.4 or earlier, 0 where it is undefined"}
_WARNING = (
    "With several references, constant answers can have a higher precision than people, since one of the "
    "references often is the same short answer. Read precision beside recall, distinct-n and "
    "most_common_share."
)


@dataclass(frozen=True)
class Responses:
    """Token lists of each context: hypotheses with the best first, references with the true one first."""

    hypotheses: Sequence[Sequence[Tokens]]
    references: Sequence[Sequence[Tokens]]


class Scorer:
    """Scorer of any number of systems against the same references, whose n-grams sacreBLEU counts once.

    Raises DataError for a context without references, or text instead of a token list.
    """

    def __init__(self, references: Sequence[Sequence[Tokens]]) -> None:
        from sacrebleu.metrics.bleu import BLEU

        self.references = groups = token_lists(references, "reference")
        most = max(map(len, groups))
        streams: list[Any] = [  # the i-th reference of every context, None if missing
            [_line(group[i]) if i < len(group) else None for group in groups] for i in range(most)
        ]
        self._sacrebleu = BLEU(tokenize="none", force=True, references=streams)

    def score(self, hypotheses: Sequence[Sequence[Tokens]]) -> tuple[Result, Result]:
        """Compute all scores, and BLEU precision and recall of each context.

        ``sacrebleu`` scores the first hypothesis of each context against all references, with our tokens.
        Raises DataError in the cases of :func:`dialog.metrics.bleu.count_overlaps`.
        """
        overlaps = count_overlaps(hypotheses, self.references)
        by_version = {name: bleu_by_context(overlaps, *version) for name, version in BLEU_VERSIONS.items()}
        corpus = self._sacrebleu.corpus_score([_line(group[0]) for group in hypotheses], None)
        result: Result = {name: scores.summary() for name, scores in by_version.items()}
        result |= {
            "legacy_undefined_share": overlaps.legacy_undefined_share,
            "bleu_versions": {
                name: {"smoothing": f"method7 of {_VARIANTS[variant]}", "weights": weights}
                for name, (variant, weights) in BLEU_VERSIONS.items()
            },
            "sacrebleu": {"score": corpus.score, "signature": str(self._sacrebleu.get_signature())},
            **diversity(hypotheses),
            "length_ratio": _length_ratio(hypotheses, self.references),
            "hypotheses": _spread(hypotheses),
            "references": _spread(self.references),
            "edge_cases": overlaps.edge_cases
            | {"hypotheses_without_bigram": sum(len(h) < 2 for group in hypotheses for h in group)},
        }
        contexts = {
            name: {
                "precision": by_version[name].precision.tolist(),
                "recall": by_version[name].recall.tolist(),
            }
            for name in ("bleu", "bleu_legacy")
        }
        return result, contexts


def responses_report(responses: Responses, split: Callable[[str], list[str]]) -> tuple[Result, Result]:
    """Score the responses with and without the true response among the references, and the yardsticks.

    ``split`` tokenizes the constant answers. With one reference per context, scores without the true response
    are omitted, and the true response is scored against itself. Returns the same pair as
    :meth:`Scorer.score`.
    """
    scorer = Scorer(responses.references)
    result, contexts = scorer.score(responses.hypotheses)
    several = [index for index, group in enumerate(responses.references) if len(group) > 1]
    true = [[group[0]] for group in responses.references]
    judge, treatment = scorer, "scored against itself, the only reference: the highest possible scores"
    if several:
        judge = Scorer([responses.references[index][1:] for index in several])
        result["without_true_response"] = _apart(judge, [responses.hypotheses[index] for index in several])
        result["without_true_response"]["skipped"] = len(responses.references) - len(several)
        true = [true[index] for index in several]
        treatment = "scored against the other references; contexts without any are skipped"
    human = judge.score(true)[0] | {"treatment": treatment}
    human["skipped"] = len(responses.references) - len(true)
    constants = {}
    answers = {answer: split(answer) for answer in CONSTANT_ANSWERS}
    for name, group in [*((a, [t]) for a, t in answers.items()), ("all five", list(answers.values()))]:
        constants[name] = scorer.score([group] * len(responses.references))[0]
        said = sum(any([*words] == one for one in group) for words, *_ in responses.references)
        constants[name]["said_share"] = said / len(responses.references)
    result["yardsticks"] = {"true_response": human, "constant_answers": constants, "note": _WARNING}
    libraries = {name: importlib.metadata.version(name) for name in ("nltk", "sacrebleu")}
    result["metric_versions"] = {"highrank": __version__, **libraries}
    return result, contexts


def _apart(judge: Scorer, hypotheses: Sequence[Sequence[Tokens]]) -> Result:
    """Scores that depend on the references: BLEU in all versions and sacreBLEU."""
    result = judge.score(hypotheses)[0]
    return {
        name: result[name] for name in (*BLEU_VERSIONS, "legacy_undefined_share", "sacrebleu", "references")
    }


def _line(tokens: Tokens) -> str:
    """Join tokens for sacreBLEU. Blanks inside a token become ``▁``, so that it stays one token."""
    return " ".join("▁".join(token.split()) or "▁" for token in tokens)


def _length_ratio(
    hypotheses: Sequence[Sequence[Tokens]], references: Sequence[Sequence[Tokens]]
) -> float | None:
    """Tokens of the first hypotheses divided by the mean tokens of their references, both summed.

    Returns None if all references are empty.
    """
    expected = sum(sum(map(len, group)) / len(group) for group in references)
    return sum(len(group[0]) for group in hypotheses) / expected if expected else None


def _spread(groups: Sequence[Sequence[Tokens]]) -> Result:
    """Minimum, mean and maximum number of token lists per context."""
    sizes = [len(group) for group in groups]
    return {"contexts": len(sizes), "min": min(sizes), "mean": sum(sizes) / len(sizes), "max": max(sizes)}
