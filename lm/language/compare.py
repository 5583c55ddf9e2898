"""Comparison of language models on the same text, with paired bootstrap p-values against the first.

The bootstrap resamples contiguous blocks of :data:`lm.language.evaluate.BLOCK` tokens instead of tokens,
because tokens within a block share topic and words.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lm import bootstrap
from lm.console.options import RESAMPLES
from lm.language.evaluate import BLOCK
from lm.runs.compare import ComparedRuns, Comparison, PartSums, Resampling
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
    perplexities=frozenset({"perplexity", *REFINED}),
)


def compare(
    runs: Sequence[Path], name: str | None = None, resamples: int = RESAMPLES, seed: int = 1
) -> ComparedRuns:
    """Compare evaluations of the same text.

    Args:
        runs: run folders. The first is the baseline of the others.
        name: file name of the evaluations in ``RUN/evaluation``. By default the only one that all runs have.
        resamples: number of bootstrap resamples, at least 1,000.
        seed: seed of the resamples.

    Returns:
        Scores are ``perplexity``, and each of :data:`REFINED` that all runs have. Facts of a run have the
        refined perplexities. The units of the bootstrap are blocks.

    Raises:
        ConfigError: no run, too few resamples, or several evaluations to choose from.
        DataError: a run without the evaluation, or runs evaluated on different tokens.
        StorageError: a damaged evaluation.
    """
    name, evaluations = _COMPARISON.open(runs, name)
    first = evaluations[0]
    blocks = len(first.contexts["tokens"])
    counts = bootstrap.draws(blocks, resamples, seed)
    columns = {"perplexity": "nll"} | {
        score: score for score in REFINED if all(_has(evaluation, score) for evaluation in evaluations)
    }
    tokens = np.asarray(first.contexts["tokens"], np.float64)

    def sums(evaluation: Evaluation) -> PartSums:
        return {score: (np.asarray(evaluation.contexts[key]), tokens) for score, key in columns.items()}

    rows = _COMPARISON.rows(evaluations, sums, np.arange(blocks), counts)
    refined = [score for score in columns if score in REFINED]
    return ComparedRuns(
        name=name,
        data=first.result["data"],
        bootstrap=Resampling(resamples, seed, f"block of {BLOCK} tokens", counts.shape[1]),
        scores=list(columns),
        runs=[
            replace(row, facts=row.facts | {score: one.result[score]["perplexity"] for score in refined})
            for row, one in zip(rows, evaluations, strict=True)
        ],
    )


def _has(evaluation: Evaluation, score: str) -> bool:
    """True if an evaluation has a refined result and its sums."""
    column, result = evaluation.contexts.get(score), evaluation.result.get(score)
    whole = isinstance(column, list) and len(column) == len(evaluation.contexts["tokens"])
    return whole and isinstance(result, dict) and "perplexity" in result
