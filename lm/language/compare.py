"""Comparison of language models on the same text, with paired bootstrap p-values against the first.

The bootstrap resamples contiguous blocks of :data:`lm.language.evaluate.BLOCK` tokens instead of tokens,
because tokens within a block share topic and words.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from lm.console.options import RESAMPLES
from lm.language.evaluate import BLOCK
from lm.runs.compare import ComparedRuns, Comparison, PartSums
from lm.runs.evaluations import Evaluation

REFINED = ("temperature_search", "mc_dropout", "mc_temperature", "cache")  # optional results of an evaluation
_KEPT = (
    *("head", "components", "parameters", "checkpoint", "seed", "method", "compat"),
    *("tokens", "nll", "perplexity"),
)
_COMPARISON = Comparison(
    program="lm",
    options="--data, --checkpoint, --limit, --temperature-search, --mc-samples, --mc-rate, --cache, --compat",
    kept=_KEPT,
    needed=(),
    columns=(("nll",), ("tokens",)),
    same=(("tokens", "they score different tokens; run `lm evaluate` with equal --limit and --compat"),),
    unit=f"block of {BLOCK} tokens",
    units_of=lambda evaluation: range(len(evaluation.contexts["tokens"])),
    perplexities=frozenset({"perplexity", *REFINED}),
)


def compare(
    runs: Sequence[Path], name: str | None = None, resamples: int = RESAMPLES, seed: int = 1
) -> ComparedRuns:
    """Compare runs, or files of evaluations, on the same text.

    Scores are ``perplexity``, and each of :data:`REFINED` that all evaluations have. Facts of a run include
    its own refined perplexities. Arguments and errors are those of :meth:`lm.runs.compare.Comparison.open`
    and :meth:`lm.runs.compare.Comparison.compared`.
    """
    name, evaluations = _COMPARISON.open(runs, name)
    refined = [score for score in REFINED if all(_has(one, score) for one in evaluations)]
    result = _COMPARISON.compared(name, evaluations, partial(_sums, refined), resamples, seed)
    rows = [
        replace(row, facts=row.facts | _refined(one))
        for row, one in zip(result.runs, evaluations, strict=True)
    ]
    return replace(result, runs=rows, scores=["perplexity", *refined])


def _sums(refined: Sequence[str], evaluation: Evaluation) -> PartSums:
    """Nats of each score by block, and tokens, whose sum is the divisor of the perplexity."""
    scored = np.asarray(evaluation.contexts["tokens"], np.float64)
    tokens = scored * (evaluation.result["tokens"] / max(1.0, scored.sum()))
    columns = {"perplexity": "nll"} | {score: score for score in refined}
    return {score: (np.asarray(evaluation.contexts[key]), tokens) for score, key in columns.items()}


def _refined(evaluation: Evaluation) -> dict[str, float]:
    """The refined perplexities of an evaluation."""
    return {score: evaluation.result[score]["perplexity"] for score in REFINED if _has(evaluation, score)}


def _has(evaluation: Evaluation, score: str) -> bool:
    """True if an evaluation has a refined result and its sums."""
    column, result = evaluation.contexts.get(score), evaluation.result.get(score)
    whole = isinstance(column, list) and len(column) == len(evaluation.contexts["tokens"])
    return whole and isinstance(result, dict) and "perplexity" in result
