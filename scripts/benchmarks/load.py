"""Latencies for a user: starting up, preparing and opening corpora, and scoring responses."""

import atexit
import random
import shutil
import subprocess
import sys
import tempfile
from functools import cache, partial
from importlib import import_module
from itertools import count
from pathlib import Path

from benchmarks.timing import Case, Ceiling, Variant, Work

CONTEXTS, RESPONSES, REFERENCES, WORDS = 200, 5, 11, 12
TOKENS, DIALOG = 300_000, 15  # of a text that is made up; lines of a dialog in it


def cases(ceiling: Ceiling) -> list[Case]:
    """Imports in fresh interpreters, beside torch's own; a text; BLEU of as many responses as papers have."""
    imports = (
        "import torch",
        "import dialog.chat.terminal, dialog.trained",
        "import dialog.cli",
        "import lm.cli",
    )
    starts = [Variant(line, partial(_interpreter, line)) for line in imports]
    texts = {
        "dialog prepare": partial(_prepare, "dialog.corpora"),
        "lm prepare": partial(_prepare, "lm.language.corpora"),
        "opened, memory-mapped": _open,
    }
    return [
        Case("start of a process", starts, memory=False),
        *(
            Case(
                f"a text of {TOKENS:,} tokens, {name}",
                [Variant(name, work)],
                ("tokens", TOKENS),
                memory=False,
            )
            for name, work in texts.items()
        ),
        Case("BLEU", [Variant("precision and recall", _bleu)], ("contexts", CONTEXTS), memory=False),
    ]


def _interpreter(line: str) -> Work:
    return lambda: subprocess.run([sys.executable, "-c", line], check=True)


@cache
def _text() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="highrank-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return text_of(folder, TOKENS)


def text_of(folder: Path, tokens: int) -> Path:
    """A new file of made-up tokens: an utterance a line, a blank line after every dialog."""
    rng, left = random.Random(1), tokens
    with (folder / "text.txt").open("w") as file:
        for number in range(1, tokens):
            words = _sentence(rng)[:left]
            file.write(" ".join(words) + ("\n\n" if number % DIALOG == 0 else "\n"))
            if not (left := left - len(words)):
                return folder / "text.txt"
    raise AssertionError("a sentence has at least one token")


def _prepare(package: str) -> Work:
    prepare = import_module(f"{package}.prepare").prepare
    numbers, text = count(), _text()  # what is prepared already would not be read again
    return lambda: prepare(str(text), text.with_name(f"{package}-{next(numbers)}"))


def _open() -> Work:
    from lm.language.corpora.corpus import load_split
    from lm.language.corpora.prepare import prepare
    from lm.text.vocabulary import Codec

    folder = _text().with_name("prepared")
    prepare(str(_text()), folder)
    return lambda: load_split(str(folder / "train"), Codec.load(folder))


def _bleu() -> Work:
    from dialog.metrics.bleu import bleu_by_context, count_overlaps

    rng = random.Random(1)
    responses, references = (
        [[_sentence(rng) for _ in range(count)] for _ in range(CONTEXTS)] for count in (RESPONSES, REFERENCES)
    )
    return lambda: bleu_by_context(count_overlaps(responses, references))


def _sentence(rng: random.Random) -> list[str]:
    """Words of which few are frequent."""
    return [f"w{min(int(rng.paretovariate(1)), 5000)}" for _ in range(rng.randint(2, 2 * WORDS))]
