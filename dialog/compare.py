"""Comparison of runs on the same conversations, with paired bootstrap p-values against the first.

The bootstrap resamples conversations instead of contexts. Contexts of one conversation share topic, speakers
and most words, so resampling contexts would overstate certainty. A score is a ratio of resampled sums (nats
and tokens, BLEU and contexts).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dialog.decoding.config import DecodeConfig
from lm.arrays import Floats
from lm.console.options import RESAMPLES
from lm.console.shared_tables import comparison_warnings, p_tables, pool_tables
from lm.console.tables import Table
from lm.errors import visible
from lm.runs.compare import ComparedRun, ComparedRuns, Comparison, PartSums
from lm.runs.evaluations import Evaluation

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
COMPARED_SCORES = {  # scores with p-values, by their names in tables
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
_OTHER_CONTEXTS = "evaluated on different contexts; run `dialog evaluate` with equal --limit"
_COMPARISON = Comparison(
    program="dialog",
    options="--data, --references, --checkpoint, --limit, --set",
    kept=_KEPT,
    needed=(
        *(("decode", "method"), ("decode", "beam")),
        *((version, order, side) for version in _BLEU for order in _ORDERS for side in _SIDES),
    ),
    columns=(
        *(("dialog",), ("turn",), ("nll",), ("tokens",)),
        *((version, side) for version in _BLEU for side in _SIDES),
    ),
    same=(
        ("dialog", _OTHER_CONTEXTS),
        ("turn", _OTHER_CONTEXTS),
        ("tokens", "they count different tokens of the same text; train them with equal data.max_response"),
    ),
    same_keys=(
        ("data.direction", "a backward run predicts other texts; compare runs of one data.direction"),
    ),
    unit="dialog",
    units_of=lambda evaluation: evaluation.contexts["dialog"],
)


def compare(
    runs: Sequence[Path], name: str | None = None, resamples: int = RESAMPLES, seed: int = 1
) -> ComparedRuns:
    """Compare runs, or files of evaluations, on the same conversations.

    Scores are ``perplexity``, and those of BLEU such as ``bleu/1/precision``. Arguments and errors are those
    of :meth:`lm.runs.compare.Comparison.open` and :meth:`lm.runs.compare.Comparison.compared`.
    """
    name, evaluations = _COMPARISON.open(runs, name)
    return _COMPARISON.compared(name, evaluations, _sums, resamples, seed)


def _sums(evaluation: Evaluation) -> PartSums:
    """Sums of each score by context, and their divisors."""
    tokens = np.asarray(evaluation.contexts["tokens"], dtype=np.float64)
    sums = {"perplexity": (np.asarray(evaluation.contexts["nll"]), tokens)}
    for version in _BLEU:
        for side in _SIDES:
            bleu = _bleu(evaluation, version, side)
            for order in _ORDERS:
                sums[f"{version}/{order}/{side}"] = (bleu[:, int(order) - 1], np.ones_like(tokens))
    return sums


def comparison_tables(comparison: ComparedRuns) -> list[Table | str]:
    """Tables of runs and of p-values of each run except the first, and the runs' decoding."""
    rows = [
        {
            "run": row.run,
            **{name: row.facts[name] for name in ("head", "parameters")},
            **{name: row.score(key) for name, key in COMPARED_SCORES.items()},
            **{name: row.facts[key] for name, key in _MEASURES.items()},
        }
        for row in comparison.runs
    ]
    return [
        Table(f"Runs on {comparison.name}", rows),
        *p_tables(comparison, COMPARED_SCORES),
        *pool_tables(comparison, COMPARED_SCORES),
        _caption(comparison.runs),
        *comparison_warnings(comparison),
    ]


def _caption(rows: Sequence[ComparedRun]) -> str:
    """Checkpoint and decoding: one line if all runs agree, else by run with a warning."""
    settings = [{"checkpoint": row.facts["checkpoint"], **row.facts["decode"]} for row in rows]
    readers = DecodeConfig.readers["method"]
    known = dict.fromkeys(key for setting in settings for key in setting)
    read = [
        key
        for key in known
        if key not in readers or any(one.get("method") in readers[key].values for one in settings)
    ]
    differ = [key for key in read if any(s.get(key) != settings[0].get(key) for s in settings)]
    shown = dict.fromkeys(("checkpoint", "method", *(key for key in read if key == "beam"), *differ))
    texts = [", ".join(f"{key} {visible(setting.get(key))}" for key in shown) for setting in settings]
    if not differ:
        return f"All runs: {texts[0]}"
    by_run = "; ".join(f"{visible(row.run)}: {text}" for row, text in zip(rows, texts, strict=True))
    return f"warning: {', '.join(differ)} differ between the runs. {by_run}"


def _bleu(evaluation: Evaluation, version: str, side: str) -> Floats:
    """BLEU-1 … BLEU-4 of every context, (C, 4)."""
    return np.asarray(evaluation.contexts[version][side], dtype=np.float64)
