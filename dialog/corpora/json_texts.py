"""Readers of question-answer pairs, also in tables, and of exports of Telegram and Discord."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from dialog.corpora.json_items import items_of, whole_text
from dialog.corpora.listed import content_text
from dialog.corpora.readers import UNNAMED, ObjectReader, RawUtterance, join_lines, make_dialog
from dialog.corpora.stamps import Message, by_time, split_at_pauses, without_zone
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
    """Dialog of a question and its answer, as :func:`pair_turns` has them."""
    turns = pair_turns(name, line, value, log)
    return make_dialog(name, line, value.get("id", UNNAMED), "", turns, log) if turns else None


def pair_turns(name: str, line: int, value: Mapping[str, Any], log: InputLog) -> list[RawUtterance]:
    """A question and its answer, or nothing. The ``input`` of an instruction is appended to the question.

    A ``history`` is dropped, since the rows before mostly have its turns, and a ``context``, which may be a
    document.
    """
    pair = pair_of(value)
    if pair is None:
        known = ", ".join(map("/".join, PAIRS))
        log.bad(name, line, "no question and answer", f"expected {known}", excerpt=", ".join(map(str, value)))
        return []
    question, answer = (value[key] for key in pair)
    if pair[0].lower() == "instruction" and isinstance(question, str):
        more = next((text for key, text in value.items() if key.lower() == "input"), None)
        question = f"{question} {more}" if isinstance(more, str) else question
    for key, found in value.items():
        if found and key.lower() in ("history", "context"):
            log.drop(name, line, f"{key.lower()} beside a question", str(found))
    return [
        RawUtterance(line, "user", join_lines(question)),
        RawUtterance(line, "assistant", join_lines(answer)),
    ]


QUESTIONS = ObjectReader((), pair_dialog)  # {"question": "…", "answer": "…"}, keys as in PAIRS


class _Sent(NamedTuple):
    """Fields of a message of an export."""

    time: Any
    speaker: Any
    id: Any
    text: Any
    notice: str = ""  # what it is instead of a message that was typed


def read_telegram(lines: Iterable[NumberedLine], name: str, log: InputLog) -> list[Dialog]:
    """Read ``result.json`` of Telegram Desktop, with one chat or all chats.

    Service messages and messages without text are dropped. A pause of over six hours begins a new dialog.
    The speakers of a shared name have their ids after it.
    """
    return _read_export(lines, name, log, _telegram)


def read_discord(lines: Iterable[NumberedLine], name: str, log: InputLog) -> list[Dialog]:
    """Read the JSON of DiscordChatExporter as :func:`read_telegram` does, a channel in any order of time."""
    return _read_export(lines, name, log, _discord, in_order=False)


def _telegram(item: Mapping[str, Any]) -> _Sent:
    notice = str(item.get("action") or item.get("media_type") or "media")
    typed = item.get("type", "message") == "message"
    text = join_lines(content_text(item.get("text"), ""))
    return _Sent(
        item.get("date"), item.get("from"), item.get("from_id"), text, "" if typed and text else notice
    )


def _discord(item: Mapping[str, Any]) -> _Sent:
    author, text = item.get("author"), join_lines(item.get("content"))
    known: Mapping[str, Any] = author if isinstance(author, dict) else {}
    kind = str(item.get("type", "no type"))
    if kind in ("Default", "Reply"):
        kind = "" if text else "media"
    return _Sent(item.get("timestamp"), known.get("name"), known.get("id"), text, kind)


def _read_export(
    lines: Iterable[NumberedLine],
    name: str,
    log: InputLog,
    fields: Callable[[Mapping[str, Any]], _Sent],
    *,
    in_order: bool = True,
) -> list[Dialog]:
    text = whole_text(lines)
    dialogs: list[Dialog] = []
    chat, line, counted = _MESSAGES.search(text), 1, 0
    if chat is None:
        log.bad(name, 1, "no list of messages", "export the chat as JSON, not as HTML")
    while chat:
        start = chat.end() - 1
        line, counted = line + text.count("\n", counted, start), start
        items = items_of(text, start, line, name, log)
        messages = _sent(items, name, log, fields)
        if not in_order:
            messages = by_time(messages)
        dialogs += split_at_pauses(messages, name, log, first=len(dialogs))
        chat = _MESSAGES.search(text, start + 1)
    return dialogs


def _sent(
    items: Iterable[tuple[int, Any]], name: str, log: InputLog, fields: Callable[[Mapping[str, Any]], _Sent]
) -> list[Message]:
    """Messages of a chat, each with a time."""
    found: list[tuple[int, _Sent]] = []
    for line, item in items:
        if isinstance(item, dict):
            found.append((line, fields(item)))
        else:
            log.bad(name, line, "message is not an object", "export the chat again", excerpt=repr(item))
    ids: dict[Any, set[Any]] = defaultdict(set)  # of the speakers of each name
    for _, sent in found:
        ids[str(sent.speaker)].add(str(sent.id))
    messages: list[Message] = []
    for line, sent in found:
        if sent.notice:
            log.drop(name, line, "notice or media", sent.notice)
            continue
        try:
            time = without_zone(datetime.fromisoformat(sent.time))
        except (TypeError, ValueError, OverflowError):
            log.bad(name, line, "no date", "export the chat again", excerpt=json.dumps(sent.time))
            continue
        shared = sent.speaker and len(ids[str(sent.speaker)]) > 1
        speaker = f"{sent.speaker} ({sent.id})" if shared else sent.speaker or sent.id
        messages.append(Message(time, RawUtterance(line, speaker, sent.text)))
    return messages
