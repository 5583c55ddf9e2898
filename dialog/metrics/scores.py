"""Scores of generated responses against references, with baselines for comparison (yardsticks)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dialog.metrics.bleu import (
    BleuScore,
    NgramWeights,
    Tokens,
    Variant,
    bleu_by_context,
    count_overlaps,
    token_lists,
)
from dialog.metrics.distinct import Diversity, diversity
from lm import __version__
from lm.libraries import installed_version
from lm.results import Merged
from lm.runs.evaluations import JsonObject

ALL_FIVE = "all five"  # the constant answers as one list
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
    "references often is the same short answer; a score above 1 comes from smoothing. Read precision "
    "beside recall, distinct-n and the most common answer."
)


Bleu = Mapping[str, Mapping[str, BleuScore]]  # by version of BLEU and order


@dataclass(frozen=True)
class SacreBleu:
    """Corpus BLEU of sacreBLEU, and the signature that names its options."""

    score: float
    signature: str


@dataclass(frozen=True)
class Spread:
    """Number of contexts, and the smallest, mean and largest number of token lists per context."""

    contexts: int
    min: int
    mean: float
    max: int

    @classmethod
    def of(cls, groups: Sequence[Sequence[Tokens]]) -> "Spread":
        """Spread of the token lists of each context."""
        sizes = [len(group) for group in groups]
        return cls(len(sizes), min(sizes), sum(sizes) / len(sizes), max(sizes))


@dataclass(frozen=True)
class BleuVersion:
    """Smoothing and n-gram weights of a version of BLEU."""

    smoothing: str
    weights: NgramWeights


@dataclass(frozen=True)
class ResponseScores:
    """Scores of responses against references. They need no model.

    ``sacrebleu`` scores the first response of each context. ``length_ratio`` is None if all references are
    empty. ``edge_cases`` counts empty and short responses and references.
    """

    bleu: Merged[Bleu]
    legacy_undefined_share: float
    bleu_versions: Mapping[str, BleuVersion]
    sacrebleu: SacreBleu
    diversity: Merged[Diversity]
    length_ratio: float | None
    hypotheses: Spread
    references: Spread
    edge_cases: Mapping[str, int]


@dataclass(frozen=True)
class WithoutTruth:
    """Scores against the other references only; ``skipped`` contexts have none."""

    bleu: Merged[Bleu]
    legacy_undefined_share: float
    sacrebleu: SacreBleu
    references: Spread
    skipped: int


@dataclass(frozen=True)
class TrueResponses:
    """Scores of the true responses, how they were scored, and the number of skipped contexts."""

    scores: Merged[ResponseScores]
    treatment: str
    skipped: int


@dataclass(frozen=True)
class ConstantAnswer:
    """Scores of one answer to all contexts, and the share of true responses that equal the answer."""

    scores: Merged[ResponseScores]
    said_share: float


@dataclass(frozen=True)
class Yardsticks:
    """Scores to compare a model with: those of people, and of constant answers."""

    true_response: TrueResponses
    constant_answers: Mapping[str, ConstantAnswer]
    note: str


@dataclass(frozen=True)
class ResponsesReport:
    """Scores of responses with yardsticks. ``without_true_response`` needs several references."""

    scores: Merged[ResponseScores]
    yardsticks: Yardsticks
    metric_versions: Mapping[str, str]
    without_true_response: WithoutTruth | None = None


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

    def score(self, hypotheses: Sequence[Sequence[Tokens]]) -> tuple[ResponseScores, JsonObject]:
        """Compute all scores, and the columns of BLEU precision and recall of each context.

        Raises DataError in the cases of :func:`dialog.metrics.bleu.count_overlaps`.
        """
        overlaps = count_overlaps(hypotheses, self.references)
        by_version = {name: bleu_by_context(overlaps, *version) for name, version in BLEU_VERSIONS.items()}
        corpus = self._sacrebleu.corpus_score([_line(group[0]) for group in hypotheses], None)
        short = sum(len(h) < 2 for group in hypotheses for h in group)
        scores = ResponseScores(
            bleu={name: found.summary() for name, found in by_version.items()},
            legacy_undefined_share=overlaps.legacy_undefined_share,
            bleu_versions={
                name: BleuVersion(f"method7 of {_VARIANTS[variant]}", weights)
                for name, (variant, weights) in BLEU_VERSIONS.items()
            },
            sacrebleu=SacreBleu(corpus.score, str(self._sacrebleu.get_signature())),
            diversity=diversity(hypotheses),
            length_ratio=_length_ratio(hypotheses, self.references),
            hypotheses=Spread.of(hypotheses),
            references=Spread.of(self.references),
            edge_cases=overlaps.edge_cases | {"hypotheses_without_bigram": short},
        )
        contexts = {
            name: {
                "precision": by_version[name].precision.tolist(),
                "recall": by_version[name].recall.tolist(),
            }
            for name in ("bleu", "bleu_legacy")
        }
        return scores, contexts


def responses_report(
    responses: Responses, split: Callable[[str], list[str]]
) -> tuple[ResponsesReport, JsonObject]:
    """Score the responses with and without the true response among the references, and the yardsticks.

    ``split`` tokenizes the constant answers. With one reference per context, scores without the true response
    are omitted, and the true response is scored against itself. Also returns the columns of
    :meth:`Scorer.score`.
    """
    scorer = Scorer(responses.references)
    scores, contexts = scorer.score(responses.hypotheses)
    several = [index for index, group in enumerate(responses.references) if len(group) > 1]
    judge, apart = scorer, None
    treatment = "scored against itself, the only reference: the highest possible scores"
    judged = [*range(len(responses.references))]
    if several:
        judge, judged = Scorer([responses.references[index][1:] for index in several]), several
        own = judge.score([responses.hypotheses[index] for index in several])[0]
        skipped = len(responses.references) - len(several)
        apart = WithoutTruth(own.bleu, own.legacy_undefined_share, own.sacrebleu, own.references, skipped)
        treatment = "scored against the other references; contexts without any are skipped"
    human = TrueResponses(
        judge.score([[responses.references[index][0]] for index in judged])[0],
        treatment,
        len(responses.references) - len(judged),
    )
    return ResponsesReport(
        scores=scores,
        yardsticks=Yardsticks(human, _constant_answers(scorer, responses, split), _WARNING),
        metric_versions={"highrank": __version__, "sacrebleu": installed_version("sacrebleu")},
        without_true_response=apart,
    ), contexts


def _constant_answers(
    scorer: Scorer, responses: Responses, split: Callable[[str], list[str]]
) -> dict[str, ConstantAnswer]:
    """Scores of each constant answer, and of all of them together."""
    found = {}
    answers = {answer: split(answer) for answer in CONSTANT_ANSWERS}
    for name, group in [*((a, [t]) for a, t in answers.items()), (ALL_FIVE, list(answers.values()))]:
        scores = scorer.score([group] * len(responses.references))[0]
        said = sum(any([*words] == one for one in group) for words, *_ in responses.references)
        found[name] = ConstantAnswer(scores, said / len(responses.references))
    return found


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
