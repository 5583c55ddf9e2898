"""Runs side by side on the same conversations, with paired bootstrap p-values against the first.

The unit that is resampled is the conversation, not the context: the contexts of one conversation share
topic, speakers and most of their words, so resampling them one by one would make differences look more
certain than they are. Resampled are the sums that a score is made of (nats and tokens, BLEU and contexts).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dialog.lines import visible
from dialog.records import FOLDER, FORMAT
from lm.errors import ConfigError, DataError, StorageError
from lm.storage import read_json

if TYPE_CHECKING:
    from rich.table import Table

Result = dict[str, Any]
Floats = NDArray[np.float64]

RESAMPLES = 10_000
_FEWEST = 5  # conversations below which a p-value would mean nothing
_ORDERS = ("1", "2", "3", "4")
_SIDES = ("precision", "recall")
_BLEU = ("bleu", "bleu_legacy")
_KEPT = (
    *("head", "parameters", "checkpoint", "seed", "decode", "contexts", "tokens", "perplexity", "nll"),
    *("perplexity_batch_mean", *_BLEU, "sacrebleu", "intra_distinct_1", "intra_distinct_2"),
    *("inter_distinct_1", "inter_distinct_2", "mean_length", "most_common_share"),
)
_COLUMNS = (
    *(("dialog",), ("turn",), ("nll",), ("tokens",)),
    *((version, side) for version in _BLEU for side in _SIDES),
)
_NEEDED = (
    *(("result", key) for key in _KEPT),
    *(("result", "data", "sha256"), ("result", "vocabulary_sha256")),
    *(("result", "decode", "method"), ("result", "decode", "beam")),
    *(("result", version, order, side) for version in _BLEU for order in _ORDERS for side in _SIDES),
    *(("contexts", *column) for column in _COLUMNS),
)


@dataclass(frozen=True)
class Evaluation:
    """An evaluation that a run has kept."""

    run: str
    result: Result
    contexts: Result


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
        is two-sided, by score (``perplexity``, ``bleu/1/precision`` …), None below 5 conversations, and
        empty for the first run.

    Raises:
        ConfigError: no run, too few resamples, or several evaluations to choose from.
        DataError: a run without the evaluation, or runs evaluated on different data or counting other tokens.
        StorageError: an evaluation that is damaged.
    """
    if not runs:
        raise ConfigError("no run to compare; name at least one run folder")
    if resamples < 1000:
        raise ConfigError(f"--resamples {resamples}: must be at least 1000")
    name = name or _common_name(runs)
    evaluations = [load_evaluation(run, name) for run in runs]
    first = evaluations[0]
    for other in evaluations[1:]:
        _check_same(first, other)
    counts = _draws(first, resamples, seed)
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


def load_evaluation(run: Path, name: str) -> Evaluation:
    """Read ``RUN/evaluation/<name>.json``; DataError if it is missing, StorageError if it is damaged."""
    path = run / FOLDER / f"{name}.json"
    known = _names(run)
    if name not in known:
        others = ", ".join(known) or "none"
        raise DataError(
            f"{visible(str(run))}: has no evaluation {visible(name)} (it has: {visible(others)}); "
            "run `dialog evaluate` on it first"
        )
    record = read_json(path)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise StorageError(f"{visible(str(path))}: not an evaluation of ours; run `dialog evaluate` again")
    result, contexts = record.get("result"), record.get("contexts")
    if not isinstance(result, dict) or not isinstance(contexts, dict):
        raise StorageError(f"{visible(str(path))}: damaged; run `dialog evaluate` again")
    for keys in _NEEDED:
        if _lookup(record, keys) is None:
            raise StorageError(f"{visible(str(path))}: has no {'.'.join(keys)}; run `dialog evaluate` again")
    columns = [_lookup(contexts, column) for column in _COLUMNS]
    if not all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns):
        raise StorageError(f"{visible(str(path))}: its contexts do not match; run `dialog evaluate` again")
    return Evaluation(str(run), result, contexts)


def p_values(first: Evaluation, other: Evaluation, counts: Floats) -> dict[str, float | None]:
    """Two-sided p-values of ``other`` against ``first`` for each score; ``counts`` (R, D) are resamples.

    The share of resamples in which the difference is not on its side of 0, doubled; the estimate adds one to
    both counts so that it is never 0. Runs with equal scores get 1.
    """
    dialogs = np.asarray(first.contexts["dialog"])
    tokens = _by_dialog(dialogs, first.contexts["tokens"])
    ones = _by_dialog(dialogs, np.ones(len(dialogs)))
    worse = np.asarray(other.contexts["nll"]) - np.asarray(first.contexts["nll"])
    pairs = {"perplexity": (_by_dialog(dialogs, worse), tokens)}
    for version in _BLEU:
        for side in _SIDES:
            better = _bleu(other, version, side) - _bleu(first, version, side)
            for order in _ORDERS:
                sums = _by_dialog(dialogs, better[:, int(order) - 1])
                pairs[f"{version}/{order}/{side}"] = (sums, ones)
    if counts.shape[1] < _FEWEST:
        return dict.fromkeys(pairs)
    return {score: _two_sided(counts @ sums / (counts @ sizes)) for score, (sums, sizes) in pairs.items()}


def comparison_table(comparison: Result) -> "Table":
    """The comparison for a terminal: a row for each run, an asterisk where p < .05 against the first."""
    from rich.table import Table
    from rich.text import Text

    title = f"Runs on {comparison['name']} (* p < .05 against the first)"
    table = Table(title=Text(title), caption=Text(_caption(comparison["runs"])))
    heads = ("run", "head", "parameters", "perplexity", *(f"BLEU-{n} P/R" for n in _ORDERS), "legacy B-1 P/R")
    for head in (*heads, "inter-distinct-1/2", "length", "most common"):
        table.add_column(head, justify="left" if head in ("run", "head") else "right")
    for row in comparison["runs"]:
        cells = [visible(row["run"]), visible(row["head"]), f"{row['parameters']:,}"]
        cells.append(f"{row['perplexity']:.2f}{_mark(row, 'perplexity')}")
        cells += [_bleu_cell(row, "bleu", order) for order in _ORDERS]
        cells.append(_bleu_cell(row, "bleu_legacy", "1"))
        cells.append(f"{row['inter_distinct_1']:.3f}/{row['inter_distinct_2']:.3f}")
        cells += [f"{row['mean_length']:.1f}", f"{row['most_common_share']:.1%}"]
        table.add_row(*map(Text, cells))
    return table


def _caption(rows: Sequence[Result]) -> str:
    """Checkpoint and decoding: once if all runs have the same, else by run, with a warning."""
    settings = [{"checkpoint": row["checkpoint"], **row["decode"]} for row in rows]
    known = dict.fromkeys(key for setting in settings for key in setting)
    differ = [key for key in known if any(s.get(key) != settings[0].get(key) for s in settings)]
    shown = dict.fromkeys(("checkpoint", "method", "beam", *differ))
    texts = [", ".join(f"{key} {visible(str(setting.get(key)))}" for key in shown) for setting in settings]
    if not differ:
        return f"All runs: {texts[0]}"
    by_run = "; ".join(f"{visible(row['run'])}: {text}" for row, text in zip(rows, texts, strict=True))
    return f"Warning: {', '.join(differ)} differ between the runs. {by_run}"


def _bleu_cell(row: Result, version: str, order: str) -> str:
    values = row[version][order]
    return "/".join(f"{values[side]:.3f}{_mark(row, f'{version}/{order}/{side}')}" for side in _SIDES)


def _mark(row: Result, score: str) -> str:
    p = row["p"].get(score)
    return "*" if p is not None and p < 0.05 else ""


def _row(evaluation: Evaluation) -> Result:
    return {"run": evaluation.run} | {key: evaluation.result[key] for key in _KEPT}


def _lookup(record: Any, keys: Sequence[str]) -> Any:
    """What nested objects hold under the keys; None where there is no such key."""
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return record


def _names(run: Path) -> list[str]:
    if not run.is_dir():
        raise StorageError(f"{visible(str(run))}: no such run; check the path")
    return sorted(path.name.removesuffix(".json") for path in (run / FOLDER).glob("*.json"))


def _common_name(runs: Sequence[Path]) -> str:
    common = set(_names(runs[0])).intersection(*map(_names, runs[1:]))
    if not common:
        names = "; ".join(f"{run}: {', '.join(_names(run)) or 'none'}" for run in runs)
        raise DataError(f"no evaluation in common ({visible(names)}); run `dialog evaluate` on each run")
    if len(common) > 1:
        names = ", ".join(sorted(common))
        raise ConfigError(f"the runs have several evaluations in common; choose one of {visible(names)}")
    return common.pop()


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
            f"{names}: they count different tokens of the same text; train them with equal data.max_tokens"
        )


def _draws(evaluation: Evaluation, resamples: int, seed: int) -> Floats:
    """How often each of the D conversations is drawn in each of R resamples, (R, D)."""
    units = len(set(evaluation.contexts["dialog"]))
    draws = np.random.default_rng(seed).multinomial(units, np.full(units, 1 / units), size=resamples)
    return draws.astype(np.float64)


def _bleu(evaluation: Evaluation, version: str, side: str) -> Floats:
    """BLEU-1 … BLEU-4 of every context, (C, 4)."""
    return np.asarray(evaluation.contexts[version][side], dtype=np.float64)


def _by_dialog(dialogs: NDArray[np.int64], values: Sequence[float] | Floats) -> Floats:
    """Sums over the contexts of each conversation, (D,)."""
    _, unit = np.unique(dialogs, return_inverse=True)
    return np.bincount(unit, weights=values).astype(np.float64)


def _two_sided(differences: Floats) -> float:
    total = len(differences)
    tail = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    return min(1.0, 2 * (tail + 1) / (total + 1))
