"""Several references for every context: reading, aligning, and finding them by tf-idf.

The file is that of Zhao et al. (2017), ``test_multi_ref.json``: a list with one item for each response of the
test dialogs, which holds the context as ``"A: text\\n"`` lines (at most 9, the first of a dialog being
``"A: <s> <d> </s>\\n"``) and the responses, *the true one first*.

Nobody has judged whether retrieved references fit: they are what was said in similar places.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dialog.corpora.corpus import Dialog, Utterance
from dialog.metrics.nearest import Documents, Index
from lm.disk.regular import open_regular
from lm.disk.storage import MAX_JSON, readable, write_atomic
from lm.errors import DataError, visible
from lm.stop import Poll, no_poll
from lm.text.tokenizers import WordPunct
from lm.text.vocabulary import BOS, DIALOG, EOS

CONTEXT = 9  # utterances of a context in the file, the pseudo-utterance <d> included
_START = f"A: {BOS} {DIALOG} {EOS}\n"  # how the file writes the pseudo-utterance

_Place = tuple[str, bool | None]  # topic, and whether the responder has just spoken (None: nobody has)


@dataclass(frozen=True, slots=True)
class ReferenceItem:
    """The references of one context; ``responses`` starts with the true one, ``acts`` is parallel to it."""

    dialog: int
    turn: int
    topic: str
    speaker: str
    context: tuple[str, ...]  # "A: text\n"
    responses: tuple[str, ...]
    acts: tuple[str, ...]


def build_references(
    train: Sequence[Dialog],
    test: Sequence[Dialog],
    neighbours: int = 10,
    poll: Poll = no_poll,
) -> list[ReferenceItem]:
    """Give every test context the responses to its nearest training contexts.

    Candidates have the topic of the test dialog and its floor: the responder is, or is not, who spoke last
    (openings go with openings). Nearness is the cosine of the contexts' tf-idf vectors (WordPunct tokens,
    lower case, idf over all training contexts); ties go to the earlier one. Repeated responses, the true one
    among them, and contexts that share no token are passed over: an item may have fewer than ``neighbours``.
    """
    documents = Documents(WordPunct().split)
    places: dict[_Place, list[int]] = defaultdict(list)
    answers: list[Utterance] = []
    for dialog in train:
        poll()
        for turn, response in enumerate(dialog.utterances[:-1]):
            places[_place(dialog, turn)].append(len(answers))
            answers.append(response)
            documents.add(_heard(dialog, turn))
    documents.finish()
    indices: dict[_Place, Index] = {}
    items = []
    for number, dialog in enumerate(test):
        poll()
        for turn, response in enumerate(dialog.utterances[:-1]):
            place = _place(dialog, turn)
            if place in places and place not in indices:
                indices[place] = Index(documents, places[place])
            ranked = indices[place].ranked(documents.vector(_heard(dialog, turn))) if place in indices else []
            found = {response.text: response}
            for row in ranked:
                if len(found) > neighbours:
                    break
                found.setdefault(answers[row].text, answers[row])
            items.append(_item(number, turn, dialog, list(found.values())))
    return items


def _place(dialog: Dialog, turn: int) -> _Place:
    said = dialog.utterances
    return dialog.topic, (said[turn - 1].speaker == said[turn].speaker) if turn else None


def _heard(dialog: Dialog, turn: int) -> list[str]:
    """The texts before a turn; at the start of a dialog the pseudo-utterance alone."""
    return [u.text for u in dialog.utterances[max(0, turn - CONTEXT) : turn]] or [DIALOG]


def _item(number: int, turn: int, dialog: Dialog, responses: Sequence[Utterance]) -> ReferenceItem:
    lines = [
        _START,
        *(f"{u.speaker.replace(':', ' ')}: {_plain(u.text)}\n" for u in dialog.utterances[:turn]),
    ]
    return ReferenceItem(
        dialog=number,
        turn=turn,
        topic=dialog.topic,
        speaker=dialog.utterances[turn].speaker,
        context=tuple(lines[-CONTEXT:]),
        responses=tuple(u.text for u in responses),
        acts=tuple(u.act for u in responses),
    )


def write_references(path: Path, items: Sequence[ReferenceItem]) -> None:
    """Write items in the layout of ``test_multi_ref.json``, one a line; StorageError where that fails."""
    rows = [
        {
            "dialog": item.dialog,
            "turn": item.turn,
            "topic": item.topic,
            "speaker": item.speaker,
            "context": item.context,
            "responses": item.responses,
            "resp_dialog_acts": item.acts,
        }
        for item in items
    ]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    write_atomic(path, f"[\n{lines}\n]\n".encode())


def read_references(path: Path) -> list[ReferenceItem]:
    """Read ``test_multi_ref.json`` or what :func:`write_references` wrote.

    An item needs ``context`` and ``responses``. DataError where the file is missing or of another layout.
    """
    name = visible(path)
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > MAX_JSON:
            raise DataError(
                f"{name}: {readable(size)}, and references are read up to {readable(MAX_JSON)}; split it"
            )
        raw = file.read()
    try:
        items = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: not UTF-8 at byte {error.start}; convert it with iconv") from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{name}:{error.lineno}: not JSON ({error.msg}); write it with `dialog references`"
        ) from None
    except ValueError as error:  # Python reads no longer numbers
        line = re.split(rb"\d{4301}", raw, maxsplit=1)[0].count(b"\n") + 1
        raise DataError(f"{name}:{line}: a number of more than 4,300 digits; write a shorter one") from error
    except RecursionError:
        raise DataError(f"{name}: nested too deeply for a list of references") from None
    if not isinstance(items, list) or not items:
        raise DataError(f"{name}: not a list of references; write it with `dialog references`")
    return [_parsed(item, f"{name}: item {number}") for number, item in enumerate(items)]


def _parsed(item: Any, name: str) -> ReferenceItem:
    if not isinstance(item, dict):
        raise DataError(f"{name} is {type(item).__name__}, not an object; write it with `dialog references`")
    for key in ("context", "responses"):
        value = item.get(key)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise DataError(f"{name}: {key} must be a list of texts; write it with `dialog references`")
    if not item["responses"]:
        raise DataError(f"{name}: responses is empty; it holds the true response first, then other ones")
    acts = item.get("resp_dialog_acts") or [""] * len(item["responses"])
    if not isinstance(acts, list) or len(acts) != len(item["responses"]):
        raise DataError(f"{name}: resp_dialog_acts and responses differ in number")
    numbers = [item.get(key, -1) for key in ("dialog", "turn")]
    if not all(isinstance(number, int) for number in numbers):
        raise DataError(f"{name}: dialog and turn must be whole numbers")
    return ReferenceItem(
        dialog=numbers[0],
        turn=numbers[1],
        topic=str(item.get("topic", "")),
        speaker=str(item.get("speaker", "")),
        context=tuple(item["context"]),
        responses=tuple(item["responses"]),
        acts=tuple(map(str, acts)),
    )


def align_references(
    items: Sequence[ReferenceItem], dialogs: Sequence[Dialog], source: str
) -> list[ReferenceItem]:
    """The item of every example, in the order of ``list_examples``, found by its context and response.

    Positions in the file mean nothing: Zhao's own order does not follow the dialogs. Where several examples
    have the same context and response (openings), the topic tells them apart.

    Raises:
        DataError: examples without an item or items without an example: how many, and the first.
    """
    waiting: dict[tuple[str, ...], list[int]] = defaultdict(list)
    examples = [(n, turn) for n, dialog in enumerate(dialogs) for turn in range(len(dialog.utterances) - 1)]
    for index, (number, turn) in enumerate(examples):
        said = dialogs[number].utterances
        heard = said[max(0, turn - CONTEXT) : turn]
        waiting[tuple(_key(u.text) for u in (*heard, said[turn]))].append(index)
    found: list[ReferenceItem | None] = [None] * len(examples)
    strangers = []
    for place, item in enumerate(items):
        texts = [_key(line.partition(":")[2]) for line in item.context]
        open_ = waiting[(*(t for t in texts if t != DIALOG), _key(item.responses[0]))]
        if not open_:
            strangers.append(place)
            continue
        same = [index for index in open_ if dialogs[examples[index][0]].topic == item.topic]
        index = (same or open_)[0]
        open_.remove(index)
        found[index] = item
    lacking = [where for where, item in zip(examples, found, strict=True) if item is None]
    if lacking or strangers:
        raise DataError(_misfit(visible(source), items, len(examples), lacking, strangers))
    return [item for item in found if item is not None]


def _misfit(
    source: str,
    items: Sequence[ReferenceItem],
    examples: int,
    lacking: Sequence[tuple[int, int]],
    strangers: Sequence[int],
) -> str:
    parts = []
    if lacking:
        dialog, turn = lacking[0]
        parts.append(
            f"{len(lacking)} of {examples} contexts have no item, the first in dialog {dialog}, turn {turn}"
        )
    if strangers:
        said = items[strangers[0]].responses[0]
        parts.append(
            f"{len(strangers)} of {len(items)} items fit no context, the first {strangers[0]}, {said!r:.60}"
        )
    return f"{source}: {'; '.join(parts)}; make it for this data with `dialog references`"


def _plain(text: str) -> str:
    """Text on one line."""
    return " ".join(text.split())


def _key(text: str) -> str:
    """What two spellings of an utterance have in common: lower case, single blanks, no <s> and </s>."""
    return " ".join(word for word in text.lower().split() if word not in (BOS, EOS))
