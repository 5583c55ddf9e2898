"""Results of an evaluation of a dialog model, whose fields are the keys of its JSON."""

from collections.abc import Sequence
from dataclasses import dataclass

from dialog.decoding.config import DecodeConfig
from dialog.metrics.scores import ResponsesReport
from lm.results import Merged
from lm.runs.evaluations import EvaluatedData, EvaluationResult, Member


@dataclass(frozen=True)
class DialogData(EvaluatedData):
    """Conversations of an evaluation, and the file and layout of their references."""

    dialogs: int
    references_file: str | None
    references_layout: str


@dataclass(frozen=True)
class ResponseLikelihood:
    """Likelihood of the true responses, including ``</s>``.

    ``perplexity`` is exp(Σ nll / Σ tokens). ``perplexity_batch_mean`` is Zhao et al.'s mean over batches of
    ``perplexity_batch_size`` examples: of the same turn of 30 dialogs there, and consecutive here. Neither
    includes the ``tokens_cut`` of the responses that are longer than ``data.max_response``.
    """

    perplexity: float
    nll: float
    vocabulary: int
    near_guessing: bool
    tokens: int
    responses_cut: int
    tokens_cut: int
    contexts: int
    perplexity_batch_mean: float
    perplexity_batch_size: int


@dataclass(frozen=True, kw_only=True)
class DialogEvaluation(EvaluationResult):
    """Evaluation of a dialog model.

    ``ensemble_with`` are the further runs of an ensemble. ``mmi_with`` is the backward run of mutual
    information, at its best checkpoint.
    """

    ensemble_with: Sequence[Member] | None = None
    mmi_with: Member | None = None
    bleu_tokens: str
    decode: DecodeConfig
    likelihood: Merged[ResponseLikelihood]
    report: Merged[ResponsesReport]
    warnings: Sequence[str]
