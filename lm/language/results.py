"""Results of evaluations of language models, whose fields are the keys of their JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lm.results import Merged
from lm.runs.evaluations import EvaluationResult, Member

Compat = Literal["none", "paper"]


@dataclass(frozen=True)
class Likelihood:
    """Mean nats a token, perplexity, and bits per character if the characters are known.

    Bits per character are None for a text with words that have become ``<unk>``.

    ``tokens`` is the divisor of the sum of nats, and ``scored`` the number of its terms. They differ by one
    for ``paper``, whose stream begins with a token that is not scored.
    """

    nll: float
    perplexity: float
    tokens: int
    scored: int
    bits_per_character: float | None = None


@dataclass(frozen=True)
class FrequencyBucket:
    """Loss of words that occur from ``least`` to ``most`` times in training; None: no limit, no such word."""

    least: int
    most: int | None
    tokens: int
    share: float
    nll: float | None
    perplexity: float | None


@dataclass(frozen=True)
class TriedFactor:
    """A factor on the logits, and the mean nats of the searched tokens."""

    multiplier: float
    nll: float


@dataclass(frozen=True)
class TemperatureChoice:
    """The best factor on the logits, ``multiplier`` = 1 / ``temperature``, and the search for it."""

    multiplier: float
    temperature: float
    searched: Sequence[TriedFactor]
    searched_tokens: int
    searched_on: str


@dataclass(frozen=True)
class DropoutPasses:
    """Number of passes with dropout, the factor on its rates, and the temperature of the passes if chosen."""

    samples: int
    rate: float
    temperature: Merged[TemperatureChoice | None] = None


@dataclass(frozen=True)
class TriedCache:
    """θ and λ of a cache, and the mean nats of the searched tokens."""

    theta: float
    share: float
    nll: float


@dataclass(frozen=True)
class CacheChoice:
    """The best θ and λ = ``share`` of a cache, and the best λ of every θ that was searched."""

    theta: float
    share: float
    searched: Sequence[TriedCache] | None = None
    searched_tokens: int | None = None
    searched_on: str | None = None


@dataclass(frozen=True)
class CacheUse:
    """Number of words of a cache, and its parameters."""

    size: int
    choice: Merged[CacheChoice]


RefinementChoice = TemperatureChoice | DropoutPasses | CacheUse


@dataclass(frozen=True)
class Refined:
    """A refinement of an evaluation, and the likelihood with it."""

    choice: Merged[RefinementChoice]
    likelihood: Merged[Likelihood]


@dataclass(frozen=True, kw_only=True)
class LmEvaluation(EvaluationResult):
    """Evaluation of a language model. ``refined`` has the refinements by name."""

    components: int
    compat: Compat
    vocabulary: int
    likelihood: Merged[Likelihood]
    refined: Merged[Mapping[str, Refined]]


@dataclass(frozen=True, kw_only=True)
class StaticEvaluation(LmEvaluation):
    """Evaluation of fixed weights. ``ensemble_with`` are the further runs of an ensemble."""

    method: Literal["static"] = "static"
    ensemble_with: Sequence[Member] | None = None
    near_guessing: bool
    buckets: Sequence[FrequencyBucket]
