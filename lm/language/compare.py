"""Comparison of language models on the same text, with paired bootstrap p-values against the first.

The bootstrap resamples contiguous blocks of :data:`lm.language.evaluate.BLOCK` tokens instead of tokens,
because tokens within a block share topic and words.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lm import bootstrap
from lm.console.options import RESAMPLES
from lm.language.evaluate import BLOCK
from lm.runs.compare import Comparison, PartSums
from lm.runs.evaluations import Evaluation, Result

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
) -> Result:
    """Compare evaluations of the same text.

    Args:
        runs: run folders. The first is the baseline of the others.
        name: file name of the evaluations in ``RUN/evaluation``. By default the only one that all runs have.
        resamples: number of bootstrap resamples, at least 1,000.
        seed: seed of the resamples.

    Returns:
        ``{"name", "data", "bootstrap", "scores", "runs": [{"run", "head", "parameters", scores …, "p"}]}``.
        ``p`` has a two-sided p-value by score, and is empty for the first run. Scores are ``perplexity``, and
        ``temperature_search`` or ``mc_dropout`` if all runs have them. A p-value is None below 5 blocks, or
        if both runs are ``near_guessing``. ``interval`` and ``change`` are those of
        :meth:`lm.runs.compare.Comparison.rows`.

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
    for row, evaluation in zip(rows, evaluations, strict=True):
        row |= {score: evaluation.result[score]["perplexity"] for score in columns if score in REFINED}
    unit = {"unit": f"block of {BLOCK} tokens", "units": counts.shape[1]}
    return {
        "name": name,
        "data": first.result["data"],
        "bootstrap": {"resamples": resamples, "seed": seed, **unit},
        "scores": list(columns),
        "runs": rows,
    }


def _has(evaluation: Evaluation, score: str) -> bool:
    """True if an evaluation has a refined result and its sums."""
    column, result = evaluation.contexts.get(score), evaluation.result.get(score)
    whole = isinstance(column, list) and len(column) == len(evaluation.contexts["tokens"])
    return whole and isinstance(result, dict) and "perplexity" in result
