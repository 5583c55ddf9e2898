"""An invented source of dialogs, and what its preparation leaves."""

import random
from pathlib import Path

from dialog.corpora.corpus import load_dialogs
from dialog.utterance import Dialog

NOUNS = ("beans", "leeks", "snow", "the river", "my brother's van", "crème brûlée")


def corpus(dialogs: int, bad: bool = False) -> str:
    """TSV of invented dialogs; with one dialog of one utterance and one line of two columns where ``bad``."""
    rng = random.Random(dialogs)
    lines = []
    for number in range(dialogs):
        for turn in range(rng.randint(2, 5)):
            text = f"i like {rng.choice(NOUNS)}" if turn % 2 else f"what about {rng.choice(NOUNS)}, then?"
            lines.append(f"d{number}\t{'AB'[turn % 2]}\t{text}\ts{turn}")
    if bad:
        lines[1:1] = ["lonely\tA\tanyone there\tq", "two\tcolumns"]
    return "\n".join(lines) + "\n"


def source_file(folder: Path, text: str) -> str:
    """A file of the source in a folder."""
    path = folder / "talk.tsv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def everything(out: Path) -> list[Dialog]:
    """The dialogs of all splits."""
    return [dialog for split in ("train", "valid", "test") for dialog in load_dialogs(str(out / split))]
