"""Two dialogs in every text format, and what reading them gives."""

import json
from pathlib import Path
from typing import Any

import pytest

from dialog.corpora.corpus import load_dialogs
from dialog.utterance import Dialog
from lm.errors import DataError

TURNS = (
    ("A", "do you keep bees", "qy"),
    ("B", "two hives", "sd"),
    ("B", "behind the barn", "sd"),
    ("A", "oh", "b"),
)


OTHER = (("A", "is it raining", "qy"), ("B", "not yet", "sd"))


HOSTILE = "\x1b[31mred\x07"


def zhao(turns: tuple[tuple[str, str, str], ...], **more: Any) -> str:
    return json.dumps({**more, "topic": ' "BEES"', "utts": [[s, t, [a, [0.1, 0.2]]] for s, t, a in turns]})


def rows(name: str, turns: tuple[tuple[str, str, str], ...]) -> list[dict[str, str]]:
    return [{"dialog": name, "speaker": s, "text": t, "act": a} for s, t, a in turns]


def tsv(row: dict[str, str]) -> str:
    return "\t".join(row.values())


ROWS = [*rows("first", TURNS), *rows("second", OTHER)]


FILES = {
    "zhao": ("c.jsonl", f"{zhao(TURNS)}\n\n{zhao(OTHER)}\n"),
    "dialogs": (
        "c.jsonl",
        "\n".join(
            json.dumps({"id": i, "utterances": rows(i, t)}) for i, t in (("first", TURNS), ("second", OTHER))
        ),
    ),
    "turns": ("c.jsonl", "\n".join(map(json.dumps, ROWS))),
    "tsv": ("c.tsv", "\n".join(map(tsv, ROWS))),
    "text": (
        "c.txt",
        "A: do you keep bees\nB: two hives\nB: behind the barn\nA: oh\n\n\nA: is it raining\nB: not yet",
    ),
    "pipes": ("first.txt", "A|do you keep bees|qy\nB|two hives|sd\nB|behind the barn|sd\nA|oh|b\n"),
}


def write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def said(dialog: Dialog) -> list[tuple[str, str]]:
    return [(utterance.speaker, utterance.text) for utterance in dialog.utterances]


def refusal(source: str, **options: Any) -> str:
    """The message of the DataError that reading a source ends with."""
    with pytest.raises(DataError) as caught:
        load_dialogs(source, **options)
    message = str(caught.value)
    assert message.isprintable(), "one line without control characters"
    return message
