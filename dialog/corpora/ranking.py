"""Readers of texts with `__eou__` at the end of utterances: DailyDialog's, and rankings such as Ubuntu's.

A ranking has rows of context, response and label (1 = true response).
"""

from collections.abc import Iterable, Sequence

from dialog.corpora.readers import RawUtterance, default_id, make_dialog
from dialog.utterance import Dialog
from lm.text.lines import InputLog, NumberedLine

_TURN, _UTTERANCE = "__eot__", "__eou__"
_LABELS = {"1": True, "1.0": True, "0": False, "0.0": False}


def is_ranking(fields: Sequence[str]) -> bool:
    """True if fields are a header of context, response and label, or a row with a label."""
    if len(fields) != 3:
        return False
    names = [field.strip().lower() for field in fields]
    named = names[0] == "context" and names[1] in ("response", "utterance") and names[2] == "label"
    return named or names[2] in _LABELS


def ends_utterances(text: str) -> bool:
    """True if a text has the mark that ends utterances."""
    return _UTTERANCE in text


def read_eou(lines: Iterable[NumberedLine], name: str, log: InputLog) -> list[Dialog]:
    """Read one dialog a line, with ``__eou__`` after each utterance. The speakers A and B alternate."""
    dialogs: list[Dialog] = []
    for line, text in lines:
        said = [" ".join(part.split()) for part in text.split(_UTTERANCE)]
        turns = [RawUtterance(line, "AB"[index % 2], part) for index, part in enumerate(filter(None, said))]
        if turns and (found := make_dialog(name, line, default_id(name, len(dialogs)), "", turns, log)):
            dialogs.append(found)
    return dialogs


def read_ranking(lines: Iterable[NumberedLine], name: str, log: InputLog) -> list[Dialog]:
    """Read ``context⇥response⇥label``, with or without a header. True responses (label 1) become dialogs.

    ``__eot__`` in a context ends a speaker's turn, ``__eou__`` an utterance.
    """
    rows = ((number, text.split("\t")) for number, text in lines if text.strip())
    return ranking_dialogs(rows, name, log)


def ranking_dialogs(rows: Iterable[tuple[int, Sequence[str]]], name: str, log: InputLog) -> list[Dialog]:
    """Dialogs from rows of context, response and label, optionally after a header."""
    dialogs: list[Dialog] = []
    for index, (line, row) in enumerate(rows):
        if len(row) != 3:
            log.bad(name, line, "wrong number of columns", "expected 3", excerpt=f"{len(row)} found")
            continue
        context, response, label = row
        true = _LABELS.get(label.strip())
        if true is None:
            if index or not is_ranking(row):
                log.bad(name, line, "label is neither 0 nor 1", "correct the label", excerpt=label)
        elif not true:
            log.drop(name, line, "response with label 0")
        else:
            turns = _turns(line, f"{context} {_TURN} {response}")
            dialog = make_dialog(name, line, default_id(name, len(dialogs)), "", turns, log)
            if dialog is not None:
                dialogs.append(dialog)
    return dialogs


def _turns(line: int, text: str) -> list[RawUtterance]:
    """Utterances of speakers A and B, who alternate at every ``__eot__``."""
    spoken = [part for part in text.split(_TURN) if part.replace(_UTTERANCE, "").strip()]
    return [
        RawUtterance(line, "AB"[index % 2], " ".join(utterance.split()))
        for index, part in enumerate(spoken)
        for utterance in part.split(_UTTERANCE)
        if utterance.strip()
    ]
