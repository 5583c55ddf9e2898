"""Runs side by side on the same conversations, with paired bootstrap p-values against the first.

The unit that is resampled is the conversation, not the context: the contexts of one conversation share
topic, speakers and most of their words, so resampling them one by one would make differences look more
certain than they are. Resampled are the sums that a score is made of (nats and tokens, BLEU and contexts).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lm import bootstrap
from lm.bootstrap import Floats, by_unit
from lm.console.options import RESAMPLES
from lm.console.report import p_tables
from lm.console.tables import Table
from lm.errors import ConfigError, DataError, visible
from lm.runs.evaluations import Evaluation, common_name, guesses, guessing_warning, load_evaluation, lookup

Result = dict[str, Any]

_ORDERS = ("1", "2", "3", "4")
_SIDES = ("precision", "recall")
_BLEU = ("bleu", "bleu_legacy")
_KEPT = (
    *("head", "parameters", "checkpoint", "seed", "decode", "contexts", "tokens", "perplexity", "nll"),
    *(
        "perplexity_batch_mean",
        *_BLEU,
        "legacy_undefined_share",
        "sacrebleu",
        "intra_distinct_1",
        "intra_distinct_2",
    ),
    *("inter_distinct_1", "inter_distinct_2", "mean_length", "most_common_share"),
)
_COLUMNS = (
    *(("dialog",), ("turn",), ("nll",), ("tokens",)),
    *((version, side) for version in _BLEU for side in _SIDES),
)
_SCORES = {  # what the tables call the scores that have p-values
    "perplexity": "perplexity",
    **{f"BLEU-{n} {side[0].upper()}": f"bleu/{n}/{side}" for n in _ORDERS for side in _SIDES},
    **{f"legacy BLEU-1 {side[0].upper()}": f"bleu_legacy/1/{side}" for side in _SIDES},
}
_MEASURES = {
    "distinct-1": "inter_distinct_1",
    "distinct-2": "inter_distinct_2",
    "length": "mean_length",
    "most common": "most_common_share",
    "undefined share": "legacy_undefined_share",
}
_OPTIONS = "--data, --references, --checkpoint, --limit, --set"
_NEEDED = (
    *(("result", key) for key in _KEPT),
    *(("result", "data", "sha256"), ("result", "vocabulary_sha256")),
    *(("result", "decode", "method"), ("result", "decode", "beam")),
    *(("result", version, order, side) for version in _BLEU for order in _ORDERS for side in _SIDES),
)


def compare(
    runs: Sequence[Path], *, name: str | None = None, resamples: int = RESAMPLES, seed: int = 1
) -> Result:
    """Compare evaluations of the same data.

    Args:
        runs: run folders; the first is what the others are compared with.
        name: which of their evaluations (the file name in ``RUN/evaluation``); the only one that all have,
            if left out.
        resamples: bootstrap resamples, at least 1,000.
        seed: seeds them.

    Returns:
        ``{"name", "data", "bootstrap", "runs": [{"run", "head", "parameters", scores …, "p": {…}}]}``. ``p``
        is two-sided, by score (``perplexity``, ``bleu/1/precision`` …), None below 5 conversations or where
        both are ``near_guessing``, and empty for the first run.

    Raises:
        ConfigError: no run, too few resamples, or several evaluations to choose from.
        DataError: a run without the evaluation, or runs evaluated on different data or counting other tokens.
        StorageError: an evaluation that is damaged.
    """
    if not runs:
        raise ConfigError("no run to compare; name at least one run folder")
    name = name or common_name(runs, "dialog", _OPTIONS)
    evaluations = [load_evaluation(run, name, _NEEDED, _COLUMNS, "dialog") for run in runs]
    first = evaluations[0]
    for other in evaluations[1:]:
        _check_same(first, other)
    counts = bootstrap.draws(len(set(first.contexts["dialog"])), resamples, seed)
    rows = [
        _row(evaluation) | {"p": {} if evaluation is first else p_values(first, evaluation, counts)}
        for evaluation in evaluations
    ]
    return {
        "name": name,
        "data": first.result["data"],
        "bootstrap": {"resamples": resamples, "seed": seed, "unit": "dialog", "units": counts.shape[1]},
        "runs": rows,
    }


def p_values(first: Evaluation, other: Evaluation, counts: Floats) -> dict[str, float | None]:
    """Two-sided p-values of ``other`` against ``first`` for each score; ``counts`` (R, D) are resamples."""
    dialogs = first.contexts["dialog"]
    tokens = by_unit(dialogs, first.contexts["tokens"])
    ones = by_unit(dialogs, np.ones(len(dialogs)))
    worse = np.asarray(other.contexts["nll"]) - np.asarray(first.contexts["nll"])
    pairs = {"perplexity": (by_unit(dialogs, worse), tokens)}
    for version in _BLEU:
        for side in _SIDES:
            better = _bleu(other, version, side) - _bleu(first, version, side)
            for order in _ORDERS:
                sums = by_unit(dialogs, better[:, int(order) - 1])
                pairs[f"{version}/{order}/{side}"] = (sums, ones)
    found = bootstrap.p_values(pairs, counts)
    return dict.fromkeys(found) if guesses(first) and guesses(other) else found


def comparison_tables(comparison: Result) -> list[Table | str]:
    """A row for each run, and one with the p-values of each run but the first; then how they answered."""
    rows = [
        {
            **{name: row[name] for name in ("run", "head", "parameters")},
            **{name: lookup(row, key.split("/")) for name, key in _SCORES.items()},
            **{name: row[key] for name, key in _MEASURES.items()},
        }
        for row in comparison["runs"]
    ]
    title = f"Runs on {comparison['name']}"
    warning = guessing_warning(comparison["runs"])
    return [Table(title, rows), *p_tables(comparison, _SCORES), _caption(comparison["runs"]), *warning]


def _caption(rows: Sequence[Result]) -> str:
    """Checkpoint and decoding: once if all runs have the same, else by run, with a warning."""
    settings = [{"checkpoint": row["checkpoint"], **row["decode"]} for row in rows]
    known = dict.fromkeys(key for setting in settings for key in setting)
    differ = [key for key in known if any(s.get(key) != settings[0].get(key) for s in settings)]
    shown = dict.fromkeys(("checkpoint", "method", "beam", *differ))
    texts = [", ".join(f"{key} {visible(setting.get(key))}" for key in shown) for setting in settings]
    if not differ:
        return f"All runs: {texts[0]}"
    by_run = "; ".join(f"{visible(row['run'])}: {text}" for row, text in zip(rows, texts, strict=True))
    return f"Warning: {', '.join(differ)} differ between the runs. {by_run}"


def _row(evaluation: Evaluation) -> Result:
    row = {"run": evaluation.run} | {key: evaluation.result[key] for key in _KEPT}
    return row | {"near_guessing": guesses(evaluation)}


def _check_same(first: Evaluation, other: Evaluation) -> None:
    """DataError unless both runs were scored on the same text and count the same tokens."""
    names = f"{visible(other.run)} and {visible(first.run)}"
    if other.result["data"]["sha256"] != first.result["data"]["sha256"]:
        raise DataError(f"{names}: evaluated on different data; run `dialog evaluate` on the same data")
    if other.result["vocabulary_sha256"] != first.result["vocabulary_sha256"]:
        raise DataError(f"{names}: their vocabularies differ, so they count other tokens; compare equal ones")
    if any(first.contexts[key] != other.contexts[key] for key in ("dialog", "turn")):
        raise DataError(f"{names}: evaluated on different contexts; run `dialog evaluate` with equal --limit")
    if first.contexts["tokens"] != other.contexts["tokens"]:
        raise DataError(
            f"{names}: they count different tokens of the same text; train them with equal data.max_response"
        )


def _bleu(evaluation: Evaluation, version: str, side: str) -> Floats:
    """BLEU-1 … BLEU-4 of every context, (C, 4)."""
    return np.asarray(evaluation.contexts[version][side], dtype=np.float64)
