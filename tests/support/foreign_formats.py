"""Files in other people's formats: written, read, and refused with a remedy."""

from pathlib import Path
from typing import Any

import pytest

from dialog.corpora.columns import ReadOptions
from dialog.corpora.sources import read_source
from dialog.utterance import Dialog
from lm.errors import DataError
from lm.text.lines import InputLog


def write(folder: Path, name: str, content: str) -> str:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return str(path)


def read(source: str, **options: Any) -> tuple[list[Dialog], InputLog]:
    log = InputLog()
    (dialogs,) = read_source(source, ReadOptions(**options), log).values()
    return dialogs, log


def said(dialogs: list[Dialog]) -> list[list[str]]:
    return [[f"{u.speaker}: {u.text}" for u in dialog.utterances] for dialog in dialogs]


def refusal(source: str, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(source, **options)
    message = str(caught.value)
    assert message.isprintable()
    assert "; " in message, "a remedy"
    return message
