"""Demo: train softmax and MoS in a minute on the built-in corpus, whose true perplexity is known."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dialog.batches import list_examples
from dialog.config import DialogConfig
from dialog.corpora.corpus import load_dialogs
from dialog.evaluate import evaluate
from dialog.results import DialogEvaluation
from dialog.smalltalk.process import true_nll
from dialog.train import train
from lm.config.load import load_config
from lm.disk.jsonfile import write_json
from lm.disk.storage import make_folder
from lm.engine.events import Reporter
from lm.results import Merged, as_json
from lm.steps import OnProgress, no_progress

RESULTS = "results.json"
DEMO_HEADS = ("softmax", "mos")
UPDATES, DIALOGS = 250, 20  # updates of training, dialogs of the test split
DEMO_SETTINGS = (
    f"train.max_steps={UPDATES}",
    f"train.validate_every={UPDATES // 2}",
    f"optim.decay_steps={UPDATES}",
    "optim.warmup_steps=30",
    "optim.lr=0.01",
)


@dataclass(frozen=True)
class DemoResult:
    """Evaluation of a head, minutes of its training, and the true perplexity of the same dialogs.

    No model has a lower perplexity than the true distribution in expectation, but one may on a finite sample.
    """

    evaluation: Merged[DialogEvaluation]
    true_perplexity: float
    minutes: float


def demo(
    out: Path, report: Callable[[str], Reporter], progress: OnProgress = no_progress
) -> dict[str, DemoResult]:
    """Train and evaluate one model per head, and write the results by head to ``results.json``.

    Every model is an ordinary run in ``out/<head>`` of the preset ``smalltalk_<head>`` with fewer updates. So
    an interrupted demo resumes. The first ``DIALOGS`` dialogs of the test split are evaluated. ``report``
    returns the reporter of a head's training.
    """
    make_folder(out)
    results: dict[str, DemoResult] = {}
    dialogs = load_dialogs("smalltalk:test")[:DIALOGS]
    contexts = len(list_examples(dialogs))
    nll, tokens = true_nll(dialogs)
    floor = math.exp(nll / tokens)
    for head in DEMO_HEADS:
        resolved = load_config(f"smalltalk_{head}", DialogConfig, family="dialog", overrides=DEMO_SETTINGS)
        fitted = train(resolved, out / head, report(head))
        result = evaluate(out / head, limit=contexts, progress=progress)
        results[head] = DemoResult(result, floor, fitted.minutes)
        write_json(out / RESULTS, {name: as_json(found) for name, found in results.items()})
    return results
