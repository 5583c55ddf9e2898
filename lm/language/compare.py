"""Language models side by side on the same text, with paired bootstrap p-values against the first.

What is resampled are contiguous blocks of :data:`lm.language.evaluate.BLOCK` tokens, not tokens: within a
block they share topic and words.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lm import bootstrap
from lm.console.options import RESAMPLES
from lm.errors import ConfigError, DataError, visible
from lm.language.evaluate import BLOCK
from lm.runs.evaluations import Evaluation, common_name, guesses, load_evaluation

Result = dict[str, Any]

REFINED = (
    "temperature_search",
    "mc_dropout",
    "mc_temperature",
)  # results that an evaluation may have beside its own
_KEPT = (
    *("head", "components", "parameters", "checkpoint", "seed", "method", "compat"),
    *("tokens", "nll", "perplexity"),
)
_NEEDED = (
    *(("result", key) for key in _KEPT),
    *(("result", "data", "sha256"), ("result", "vocabulary_sha256")),
)
_COLUMNS = (("nll",), ("tokens",))
_OPTIONS = "--data, --checkpoint, --limit, --temperature-search, --mc-samples, --mc-rate, --compat"


def compare(
    runs: Sequence[Path], name: str | None = None, resamples: int = RESAMPLES, seed: int = 1
) -> Result:
    """Compare evaluations of the same text.

    Args:
        runs: run folders; the first is what the others are compared with.
        name: which of their evaluations (the file name in ``RUN/evaluation``); the only one that all have,
            if left out.
        resamples: bootstrap resamples, at least 1,000.
        seed: seeds them.

    Returns:
        ``{"name", "data", "bootstrap", "scores", "runs": [{"run", "head", "parameters", scores …, "p"}]}``.
        ``p`` is two-sided, by score (``perplexity``, and ``temperature_search`` or ``mc_dropout`` where all
        have it), None below 5 blocks or where both are ``near_guessing``, and empty for the first run.

    Raises:
        ConfigError: no run, too few resamples, or several evaluations to choose from.
        DataError: a run without the evaluation, or runs evaluated on different tokens.
        StorageError: an evaluation that is damaged.
    """
    if not runs:
        raise ConfigError("no run to compare; name at least one run folder")
    name = name or common_name(runs, "lm", _OPTIONS)
    evaluations = [load_evaluation(run, name, _NEEDED, _COLUMNS, "lm") for run in runs]
    first = evaluations[0]
    for other in evaluations[1:]:
        _check_same(first, other)
    counts = bootstrap.draws(len(first.contexts["tokens"]), resamples, seed)
    columns = {"perplexity": "nll"} | {
        score: score for score in REFINED if all(_has(evaluation, score) for evaluation in evaluations)
    }
    tokens = np.asarray(first.contexts["tokens"], np.float64)
    rows = []
    for evaluation in evaluations:
        row = {"run": evaluation.run} | {key: evaluation.result[key] for key in _KEPT}
        row["near_guessing"] = guesses(evaluation)
        row |= {score: evaluation.result[score]["perplexity"] for score in columns if score in REFINED}
        pairs = {
            score: (np.asarray(evaluation.contexts[key]) - np.asarray(first.contexts[key]), tokens)
            for score, key in columns.items()
        }
        p = {} if evaluation is first else bootstrap.p_values(pairs, counts)
        rows.append(row | {"p": dict.fromkeys(p) if guesses(first) and guesses(evaluation) else p})
    unit = {"unit": f"block of {BLOCK} tokens", "units": counts.shape[1]}
    return {
        "name": name,
        "data": first.result["data"],
        "bootstrap": {"resamples": resamples, "seed": seed, **unit},
        "scores": list(columns),
        "runs": rows,
    }


def _has(evaluation: Evaluation, score: str) -> bool:
    """Whether an evaluation has a refined result, and its sums."""
    column, result = evaluation.contexts.get(score), evaluation.result.get(score)
    whole = isinstance(column, list) and len(column) == len(evaluation.contexts["tokens"])
    return whole and isinstance(result, dict) and "perplexity" in result


def _check_same(first: Evaluation, other: Evaluation) -> None:
    """DataError unless both runs predicted the same tokens of the same vocabulary."""
    names = f"{visible(other.run)} and {visible(first.run)}"
    if other.result["vocabulary_sha256"] != first.result["vocabulary_sha256"]:
        raise DataError(f"{names}: their vocabularies differ, so they count other tokens; compare equal ones")
    if other.result["data"]["sha256"] != first.result["data"]["sha256"]:
        raise DataError(f"{names}: evaluated on different data; run `lm evaluate` on the same data")
    if other.contexts["tokens"] != first.contexts["tokens"]:
        raise DataError(
            f"{names}: they score different tokens; run `lm evaluate` with equal --limit and --compat"
        )
