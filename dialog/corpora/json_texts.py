"""Readers of question-answer pairs, also in tables, and of Telegram exports."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from dialog.corpora.json_items import items_of, whole_text
from dialog.corpora.listed import content_text
from dialog.corpora.readers import UNNAMED, ObjectReader, RawUtterance, join_lines, make_dialog
from dialog.corpora.stamps import Message, split_at_pauses
from dialog.utterance import Dialog
from lm.text.lines import InputLog, NumberedLine

PAIRS = (
    ("question", "answer"),
    ("prompt", "completion"),
    ("prompt", "response"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("input", "output"),
)
_MESSAGES = re.compile(r'"messages"\s*:\s*\[')


def pair_of(keys: Iterable[str]) -> tuple[str, str] | None:
    """Keys of a question and its answer in any case, or None."""
    known = {key.lower(): key for key in keys}
    found = (pair for pair in PAIRS if known.keys() >= {*pair})
    return next(((known[question], known[answer]) for question, answer in found), None)


def pair_dialog(name: str, line: int, value: Mapping[str, Any], log: InputLog) -> Dialog | None:
    """Dialog of a question and its answer. The ``input`` of an instruction is appended to the question.

    A ``history`` is dropped, since the rows before mostly have its turns, and a ``context``, which may be a
    document.
    """
    pair = pair_of(value)
    if pair is None:
        known = ", ".join(map("/".join, PAIRS))
        log.bad(name, line, "no question and answer", f"expected {known}", excerpt=", ".join(map(str, value)))
        return None
    question, answer = (value[key] for key in pair)
    if pair[0].lower() == "instruction" and isinstance(question, str):
        more = next((text for key, text in value.items() if key.lower() == "input"), None)
        question = f"{question} {more}" if isinstance(more, str) else question
    for key, found in value.items():
        if found and key.lower() in ("history", "context"):
            log.drop(name, line, f"{key.lower()} beside a question", str(found))
    turns = [
        RawUtterance(line, "user", join_lines(question)),
        RawUtterance(line, "assistant", join_lines(answer)),
    ]
    return make_dialog(name, line, value.get("id", UNNAMED), "", turns, log)


QUESTIONS = ObjectReader((), pair_dialog)  # {"question": "…", "answer": "…"}, keys as in PAIRS


def read_telegram(lines: Iterable[NumberedLine], name: str, log: InputLog) -> list[Dialog]:
    """Read ``result.json`` of Telegram Desktop, with one chat or all chats.

    Service messages and messages without text are dropped. A pause of over six hours begins a new dialog.
    The speakers of a shared name have their ids after it.
    """
    text = whole_text(lines)
    dialogs: list[Dialog] = []
    chat = _MESSAGES.search(text)
    if chat is None:
        log.bad(name, 1, "no list of messages", "export the chat as JSON, not as HTML")
    while chat:
        items = items_of(text, chat.end() - 1, name, log)
        dialogs += split_at_pauses(_telegram(items, name, log), name, log, first=len(dialogs))
        chat = _MESSAGES.search(text, chat.end())
    return dialogs


def _telegram(items: Iterable[tuple[int, Any]], name: str, log: InputLog) -> Iterator[Message]:
    items = list(items)
    ids: dict[Any, set[Any]] = defaultdict(set)  # of the speakers of each name
    for _, item in items:
        if isinstance(item, dict):
            ids[str(item.get("from"))].add(str(item.get("from_id")))
    for line, item in items:
        if not isinstance(item, dict):
            log.bad(name, line, "message is not an object", "export the chat again", excerpt=repr(item))
            continue
        text = join_lines(content_text(item.get("text"), ""))
        if item.get("type", "message") != "message" or not text:
            log.drop(name, line, "notice or media", str(item.get("action") or item.get("media_type") or ""))
            continue
        try:
            time = datetime.fromisoformat(item["date"]).replace(tzinfo=None)
        except (KeyError, TypeError, ValueError):
            log.bad(name, line, "no date", "export the chat again", excerpt=json.dumps(item))
            continue
        speaker, id = item.get("from"), item.get("from_id")
        shared = speaker and len(ids[str(speaker)]) > 1
        yield Message(time, RawUtterance(line, f"{speaker} ({id})" if shared else speaker or id, text))
