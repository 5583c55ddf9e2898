"""Dialogs of JSON objects and of rows of tables that hold their utterances as a list.

The items of the list are strings, or objects such as ``{"speaker": "A", "text": "hello"}`` or OpenAI's
``{"role": "user", "content": "hello"}``, with the common names of columns.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dialog.corpora.columns import ReadOptions, list_name, usual
from dialog.corpora.readers import UNNAMED, ObjectReader, RawUtterance, join_lines, make_dialog
from dialog.utterance import Dialog
from lm.text.lines import InputLog

_MUTE = ("system", "developer", "tool", "function")  # roles outside the conversation


def _object_dialog(name: str, line: int, value: dict[str, Any], log: InputLog) -> Dialog | None:
    """Dialog of a JSON object with a list of utterances, and perhaps an id and a topic."""
    key = list_name(value)
    if key is None:
        remedy = 'give every object a list, as in {"utterances": […]}'
        log.bad(name, line, "no list of utterances", remedy, excerpt=f"found: {', '.join(map(str, value))}")
        return None
    others = [other for other in value if other != key]
    dialog, speaker, act = (usual(kind, others) or kind for kind in ("dialog", "speaker", "act"))
    id = value.get("id", value.get(dialog, UNNAMED) if dialog in others else UNNAMED)
    options = ReadOptions("auto", dialog, speaker, key, act)
    return listed_dialog(name, line, value, options, log, id, value.get("topic"))


OBJECTS = ObjectReader((), _object_dialog)  # {"id": …, "topic": …, "utterances": […]}


def listed_dialog(
    name: str,
    line: int,
    row: Mapping[str, Any],
    options: ReadOptions,
    log: InputLog,
    id: Any = UNNAMED,
    topic: Any = "",
) -> Dialog | None:
    """Dialog from the list of a row's text column. Without speakers, A and B alternate.

    The columns of speakers and acts may have lists as long as that of the texts. Returns None, and logs it,
    if they are of another length or if fewer than two utterances remain.
    """
    length = len(row[options.text_column])
    for column in (options.speaker_column, options.act_column):
        if isinstance(row.get(column), list) and len(row[column]) != length:
            log.bad(name, line, "lists of different lengths", "give every utterance a speaker and an act")
            return None
    return make_dialog(name, line, id, topic, _turns(name, line, row, options, log), log)


def _turns(
    name: str, line: int, row: Mapping[str, Any], options: ReadOptions, log: InputLog
) -> Iterator[RawUtterance]:
    items = row[options.text_column]
    speakers, acts = row.get(options.speaker_column), row.get(options.act_column)
    named = any(isinstance(item, dict) and _key("speaker", item, options) for item in items)
    for index, item in enumerate(items):
        text = item
        speaker = speakers[index] if isinstance(speakers, list) else None if named else "AB"[index % 2]
        act = acts[index] if isinstance(acts, list) else ""
        if isinstance(item, dict):
            text = item.get(_key("text", item, options))
            speaker = item.get(_key("speaker", item, options), speaker)
            act = item.get(_key("act", item, options), act)
            if item.keys() & {"role", "from"}:
                text = _message_text(item.get("role", item.get("from")), text, name, line, log)
                if text is None:
                    continue
        if text is None or not isinstance(item, str | dict):
            problem = f"an item of {options.text_column} is not an utterance"
        elif speaker is None:
            problem = f"an item of {options.text_column} has no speaker"
        else:
            yield RawUtterance(line, speaker, text, act)
            continue
        log.bad(name, line, problem, "correct the item", excerpt=repr(item))


def _key(kind: str, item: Mapping[str, Any], options: ReadOptions) -> str | None:
    """Key of an item for speaker, text or act: the column of that name, else a role, else a common name."""
    column: str = getattr(options, f"{kind}_column")
    if column in item:
        return column
    return "role" if kind == "speaker" and "role" in item else usual(kind, item)


def _message_text(role: Any, content: Any, name: str, line: int, log: InputLog) -> Any:
    """Text of a message of a chat. None for one of the system or a tool, or without text, which is logged."""
    text = join_lines(content_text(content))
    if role not in _MUTE and text:
        return text
    log.drop(name, line, "system or tool message" if role in _MUTE else "message without text")
    return None


def content_text(content: Any, joint: str = " ") -> Any:
    """Text of a message's content. Joins the text parts if the content is a list."""
    if not isinstance(content, list):
        return content
    parts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return joint.join(part for part in parts if isinstance(part, str))
