"""The demo: the four heads of the dialog papers on the built-in corpus, whose true perplexity is known."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dialog.corpus import load_dialogs
from dialog.evaluate import evaluate
from dialog.schema import DialogConfig
from dialog.smalltalk import true_nll
from dialog.train import train
from lm.config import load_config
from lm.progress import Reporter
from lm.stop import Poll, Progress, no_poll, no_progress
from lm.storage import make_folder, write_json

RESULTS = "results.json"
HEADS = ("softmax", "moc", "mos", "moss")


def demo(
    out: Path,
    report: Callable[[str], Reporter],
    poll: Poll = no_poll,
    progress: Progress = no_progress,
) -> dict[str, dict[str, Any]]:
    """Train and evaluate one model a head, and write ``results.json``.

    Every model is an ordinary run in ``out/<head>`` of the preset ``smalltalk_<head>``, so a demo that was
    stopped goes on where it was.

    Args:
        out: where the runs go.
        report: gives the reporter of a head's training.
        poll, progress: see :func:`dialog.evaluate.evaluate`.

    Returns:
        For every head what :func:`dialog.evaluate.evaluate` returns, with ``true_perplexity``, that of the
        test split under its own distribution, and ``minutes`` of training. No model is expected to be better
        than the true distribution, though on one sample a model can be luckier.
    """
    make_folder(out)
    results: dict[str, dict[str, Any]] = {}
    nll, tokens = true_nll(load_dialogs("smalltalk:test"))
    floor = math.exp(nll / tokens)
    for head in HEADS:
        resolved = load_config(f"smalltalk_{head}", DialogConfig, family="dialog")
        fitted = train(resolved, out / head, report(head))
        result = evaluate(out / head, poll=poll, progress=progress)
        results[head] = result | {"true_perplexity": floor, "minutes": fitted.minutes}
        write_json(out / RESULTS, results)
    return results
