"""Demo: softmax and MoS on the built-in corpus, whose true perplexity is known, in a minute."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dialog.batches import list_examples
from dialog.config import DialogConfig
from dialog.corpora.corpus import load_dialogs
from dialog.evaluate import evaluate
from dialog.smalltalk.process import true_nll
from dialog.train import train
from lm.config.load import load_config
from lm.disk.storage import make_folder, write_json
from lm.engine.progress import Reporter
from lm.stop import Poll, Progress, no_poll, no_progress

RESULTS = "results.json"
HEADS = ("softmax", "mos")
UPDATES, DIALOGS = 250, 20  # of training; of the test split
SETTINGS = (
    f"train.max_steps={UPDATES}",
    f"train.validate_every={UPDATES // 2}",
    f"optim.decay_steps={UPDATES}",
    "optim.warmup_steps=30",
    "optim.lr=0.01",
)


def demo(
    out: Path,
    report: Callable[[str], Reporter],
    poll: Poll = no_poll,
    progress: Progress = no_progress,
) -> dict[str, dict[str, Any]]:
    """Train and evaluate one model a head, and write ``results.json``.

    Every model is an ordinary run in ``out/<head>`` of the preset ``smalltalk_<head>`` with fewer updates, so
    a demo that was stopped goes on where it was. The first dialogs of the test split are the test.

    Args:
        out: where the runs go.
        report: gives the reporter of a head's training.
        poll, progress: see :func:`dialog.evaluate.evaluate`.

    Returns:
        For every head what :func:`dialog.evaluate.evaluate` returns, with ``true_perplexity``, that of the
        same dialogs under their own distribution, and ``minutes`` of training. No model is expected to be
        better than the true distribution, though on one sample a model can be luckier.
    """
    make_folder(out)
    results: dict[str, dict[str, Any]] = {}
    dialogs = load_dialogs("smalltalk:test")[:DIALOGS]
    contexts = len(list_examples(dialogs))
    nll, tokens = true_nll(dialogs)
    floor = math.exp(nll / tokens)
    for head in HEADS:
        resolved = load_config(f"smalltalk_{head}", DialogConfig, family="dialog", overrides=SETTINGS)
        fitted = train(resolved, out / head, report(head))
        result = evaluate(out / head, limit=contexts, poll=poll, progress=progress)
        results[head] = result | {"true_perplexity": floor, "minutes": fitted.minutes}
        write_json(out / RESULTS, results)
    return results
