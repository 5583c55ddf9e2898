"""Evaluations written as JSON, with fields that no version of the program has."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lm.disk.jsonfile import canonical_json, sealed
from lm.runs.evaluations import EVALUATION_FORMAT, EVALUATIONS

DIALOGS, TURNS = 20, 15


def keep_record(
    run: Path,
    name: str,
    result: dict[str, Any],
    contexts: dict[str, Any],
    details: dict[str, Any] | None = None,
) -> None:
    """Write a record to ``RUN/evaluation/NAME.json``."""
    folder = run / EVALUATIONS
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"result": result | {"name": name}, "contexts": contexts, "details": details or {}}
    (folder / f"{name}.json").write_bytes(canonical_json(sealed({"format": EVALUATION_FORMAT} | parts)))


def edit_record(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the record of a file, and its hash."""
    record = json.loads(path.read_text())
    edit(record)
    path.write_bytes(canonical_json(sealed(record)))


def keep_scores(
    folder: Path, *, seed: int = 1, better: float = 0.0, name: str = "test", **facts: Any
) -> Path:
    """An evaluation with made-up scores; ``better`` nats a token and BLEU points above the common scores."""
    common, own = np.random.default_rng(0), np.random.default_rng(seed)
    contexts = DIALOGS * TURNS
    tokens = common.integers(1, 20, contexts)
    nll = tokens * (common.normal(4, 1, contexts) + own.normal(0, 0.3, contexts) - better)
    sides = {
        side: (common.uniform(0, 0.5, (contexts, 4)) + own.normal(0, 0.05, (contexts, 4)) + better).tolist()
        for side in ("precision", "recall")
    }
    bleu = {str(n): {side: float(np.mean(sides[side], 0)[n - 1]) for side in sides} for n in (1, 2, 3, 4)}
    scores = ("intra_distinct_1", "intra_distinct_2", "inter_distinct_1", "inter_distinct_2", "mean_length")
    result = {
        **dict.fromkeys((*scores, "most_common_share", "perplexity_batch_mean"), 0.5),
        "head": "mos",
        "parameters": 1234567,
        "checkpoint": "best",
        "seed": seed,
        "decode": {"method": "beam", "beam": 10, "nbest": 5},
        "data": {"sha256": "d"},
        "vocabulary_sha256": "v",
        "contexts": contexts,
        "tokens": int(tokens.sum()),
        "nll": float(nll.sum() / tokens.sum()),
        "perplexity": float(np.exp(nll.sum() / tokens.sum())),
        "bleu": bleu,
        "bleu_legacy": bleu,
        "legacy_undefined_share": 0.25,
        "sacrebleu": {"score": 1.0, "signature": "s"},
    } | facts
    record = {
        "dialog": np.repeat(np.arange(DIALOGS), TURNS).tolist(),
        "turn": [*range(TURNS)] * DIALOGS,
        "nll": nll.tolist(),
        "tokens": tokens.tolist(),
        "bleu": sides,
        "bleu_legacy": sides,
    }
    keep_record(folder, name, result, record)
    return folder
