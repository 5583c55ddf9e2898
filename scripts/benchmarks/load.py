"""What a user waits for: starting up, and scoring responses."""

import random
import subprocess
import sys
from functools import partial

from benchmarks.timing import Case, Ceiling, Variant, Work

CONTEXTS, RESPONSES, REFERENCES, WORDS = 200, 5, 11, 12


def cases(ceiling: Ceiling) -> list[Case]:
    """Imports in fresh interpreters, beside torch's own; BLEU over a share of Switchboard's test set."""
    imports = ("import torch", "import dialog.chat, dialog.trained", "import dialog.cli", "import lm.cli")
    starts = [Variant(line, partial(_interpreter, line)) for line in imports]
    return [
        Case("start of a process", starts, memory=False),
        Case("BLEU", [Variant("precision and recall", _bleu)], ("contexts", CONTEXTS), memory=False),
    ]


def _interpreter(line: str) -> Work:
    return lambda: subprocess.run([sys.executable, "-c", line], check=True)


def _bleu() -> Work:
    from dialog.bleu import bleu_by_context, count_overlaps

    rng = random.Random(1)

    def sentence() -> list[str]:
        return [f"w{min(int(rng.paretovariate(1)), 5000)}" for _ in range(rng.randint(2, 2 * WORDS))]

    responses, references = (
        [[sentence() for _ in range(count)] for _ in range(CONTEXTS)] for count in (RESPONSES, REFERENCES)
    )
    return lambda: bleu_by_context(count_overlaps(responses, references))
