"""Multiple references per context: reading and writing the file, alignment, retrieval by tf-idf.

The file has the layout of Zhao et al.'s (2017) ``test_multi_ref.json``: a list with an item for each response
of the test dialogs. An item holds the context and the responses, *the true one first*. The context is a list
of at most 9 lines ``"A: text\\n"``. At the start of a dialog the first line is ``"A: <s> <d> </s>\\n"``.

Retrieved references are responses to similar contexts. Nobody has judged whether they fit.
"""

import json
import os
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from dialog.metrics.nearest import Documents, Index
from dialog.utterance import Dialog, Utterance
from lm.disk.jsonfile import MAX_JSON
from lm.disk.regular import open_regular
from lm.disk.storage import readable, write_atomic
from lm.errors import DataError, visible
from lm.parallel.group import ALONE, Group
from lm.parallel.slices import joined
from lm.steps import OnProgress, no_progress
from lm.text.tokenizers import BOS, DIALOG, EOS, WordPunct

CONTEXT = 9  # utterances of a context in the file, including the pseudo-utterance <d>
_START = f"A: {BOS} {DIALOG} {EOS}\n"  # the pseudo-utterance in the file

_Place = tuple[str, bool | None]  # topic, and true if the responder spoke last (None: nobody spoke)


@dataclass(frozen=True, slots=True)
class ReferenceItem:
    """References of one context. ``responses`` starts with the true one, and ``acts`` is parallel to it."""

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
    group: Group = ALONE,
    progress: OnProgress = no_progress,
) -> list[ReferenceItem]:
    """Retrieve the responses to the nearest training contexts for every test context.

    Candidates have the topic of the test dialog and the same floor: the responder did, or did not, speak
    last. Openings match only openings. Similarity is the cosine of tf-idf vectors (WordPunct tokens, lower
    case, idf over all training contexts). Ties go to the earlier context. Repetitions of the true or another
    response, and contexts without a common token, are skipped, so an item may have fewer than ``neighbours``.
    The processes of a ``group`` share the test contexts, and ``progress`` counts those of this process.
    """
    documents = Documents(WordPunct().split)
    places: dict[_Place, list[int]] = defaultdict(list)
    answers: list[Utterance] = []
    for dialog in train:
        for turn, response in enumerate(dialog.utterances[:-1]):
            places[_place(dialog, turn)].append(len(answers))
            answers.append(response)
            documents.add(_heard(dialog, turn))
    documents.finish()
    contexts = [(number, turn) for number, d in enumerate(test) for turn in range(len(d.utterances) - 1)]
    indices: dict[_Place, Index] = {}

    def nearest(part: range) -> Iterator[list[int]]:
        """Rows of the answers for each context of a slice."""
        for done, (number, turn) in enumerate(contexts[part.start : part.stop], 1):
            dialog = test[number]
            place = _place(dialog, turn)
            if place in places and place not in indices:
                indices[place] = Index(documents, places[place])
            ranked = indices[place].ranked(documents.vector(_heard(dialog, turn))) if place in indices else []
            found = {dialog.utterances[turn].text: -1}
            for row in ranked:
                if len(found) > neighbours:
                    break
                found.setdefault(answers[row].text, row)
            progress(done, len(part))
            yield [row for row in found.values() if row >= 0]

    return [
        _item(number, turn, test[number], [test[number].utterances[turn], *(answers[row] for row in rows)])
        for (number, turn), rows in zip(contexts, joined(group, len(contexts), nearest), strict=True)
    ]


def _place(dialog: Dialog, turn: int) -> _Place:
    said = dialog.utterances
    return dialog.topic, (said[turn - 1].speaker == said[turn].speaker) if turn else None


def _heard(dialog: Dialog, turn: int) -> list[str]:
    """Texts before a turn, or only the pseudo-utterance at the start of a dialog."""
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
    """Write items in the layout of ``test_multi_ref.json``, one per line. Raises StorageError on failure."""
    rows = [asdict(item) for item in items]
    for row in rows:
        row["resp_dialog_acts"] = row.pop("acts")
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    write_atomic(path, f"[\n{lines}\n]\n".encode())


def read_references(path: Path) -> list[ReferenceItem]:
    """Read ``test_multi_ref.json`` or a file of :func:`write_references`.

    An item needs ``context`` and ``responses``. Raises DataError if the file is missing or of another layout.
    """
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > MAX_JSON:
            raise DataError(
                f"{path}: {readable(size)} is more than the limit of {readable(MAX_JSON)}; split the file"
            )
        raw = file.read()
    try:
        items = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; convert it with iconv") from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{error.lineno}:{error.colno}: not JSON ({error.msg}); write it with `dialog references`"
        ) from None
    except ValueError as error:  # Python's limit on the digits of a number
        line = re.split(rb"\d{4301}", raw, maxsplit=1)[0].count(b"\n") + 1
        raise DataError(f"{path}:{line}: a number of more than 4,300 digits; write a shorter one") from error
    except RecursionError:
        raise DataError(f"{path}: nested too deeply; write it with `dialog references`") from None
    if not isinstance(items, list) or not items:
        raise DataError(f"{path}: not a list of references; write it with `dialog references`")
    return [_parsed(item, f"{path}: item {number}") for number, item in enumerate(items)]


def _parsed(item: Any, name: str) -> ReferenceItem:
    if not isinstance(item, dict):
        raise DataError(f"{name} is {type(item).__name__}, not an object; write it with `dialog references`")
    for key in ("context", "responses"):
        value = item.get(key)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise DataError(f"{name}: {key} must be a list of texts; write it with `dialog references`")
    if not item["responses"]:
        raise DataError(f"{name}: responses is empty; list the true response first, then the others")
    acts = item.get("resp_dialog_acts") or [""] * len(item["responses"])
    if not isinstance(acts, list) or len(acts) != len(item["responses"]):
        raise DataError(f"{name}: resp_dialog_acts and responses differ in number; give each one act")
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
    """Find the item of every example by its context and response, in the order of ``list_examples``.

    Positions in the file are ignored, since Zhao's own order does not follow the dialogs. The topic
    distinguishes examples with the same context and response, such as openings.

    Raises:
        DataError: examples without an item or items without an example, with their number and the first.
    """
    waiting: dict[tuple[str, ...], dict[str, deque[int]]] = defaultdict(lambda: defaultdict(deque))
    examples = [(n, turn) for n, dialog in enumerate(dialogs) for turn in range(len(dialog.utterances) - 1)]
    for index, (number, turn) in enumerate(examples):
        said = dialogs[number].utterances
        heard = said[max(0, turn - CONTEXT) : turn]
        texts = tuple(_key(u.text) for u in (*heard, said[turn]))
        waiting[texts][dialogs[number].topic].append(index)
    found: list[ReferenceItem | None] = [None] * len(examples)
    strangers = []
    for place, item in enumerate(items):
        context = (_key(line.partition(":")[2]) for line in item.context)
        by_topic = waiting[(*(t for t in context if t != DIALOG), _key(item.responses[0]))]
        same = by_topic[item.topic]
        if queues := [same] if same else [queue for queue in by_topic.values() if queue]:
            found[min(queues, key=itemgetter(0)).popleft()] = item
        else:
            strangers.append(place)
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
            f"{len(strangers)} of {len(items)} items match no context, the first {strangers[0]}, {said!r:.60}"
        )
    return f"{source}: {'; '.join(parts)}; build the file for this data with `dialog references`"


def _plain(text: str) -> str:
    return " ".join(text.split())


def _key(text: str) -> str:
    """Normalised text of an utterance: lower case, single blanks, no <s> and </s>."""
    return " ".join(word for word in text.lower().split() if word not in (BOS, EOS))
