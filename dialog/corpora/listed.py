"""Dialogs of JSON objects and of rows of tables that hold their utterances as a list.

The items of the list are strings, or objects such as ``{"speaker": "A", "text": "hello"}`` or OpenAI's
``{"role": "user", "content": "hello"}``, with the common names of columns. Instead of a list there may be a
script, ``"A: hello\\nB: hi"``, or an object with a list for each field.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from dialog.corpora.columns import ReadOptions, list_name, speakers_beside, usual_keys
from dialog.corpora.formats import PAGE
from dialog.corpora.readers import UNNAMED, ObjectReader, RawUtterance, join_lines, make_dialog
from dialog.corpora.scripts import spoken_items, with_list
from dialog.utterance import Dialog
from lm.text.lines import InputLog

_ITEM = f"give it the keys speaker and text, or names as in {PAGE}"
_MUTE = ("system", "developer", "tool", "function")  # roles outside the conversation


def _object_dialog(
    first: Sequence[str], name: str, line: int, value: dict[str, Any], log: InputLog
) -> Dialog | None:
    """Dialog of a JSON object with a list of utterances, ``first`` under these names.

    Lists of speakers and acts are read beside a list of texts only. Other values have any meaning, except an
    id and a topic.
    """
    value = with_list(value)
    key = list_name(value, first)
    if key is None:
        remedy = f'give every object one list, as in {{"{first[0]}": […]}}, or one text of lines `A: text`'
        log.bad(name, line, "no list of utterances", remedy, excerpt=f"found: {', '.join(map(str, value))}")
        return None
    row = {key: value[key]}
    if all(isinstance(item, str) for item in value[key]):
        row |= {other: found for other, found in value.items() if isinstance(found, list)}
    _, speaker, _, act = usual_keys(tuple(row))
    options = ReadOptions("auto", "dialog", speaker or "speaker", key, act or "act")
    topic = value.get("topic")
    topic = str(topic) if isinstance(topic, str | int) else ""
    return listed_dialog(name, line, row, options, log, value.get("id", UNNAMED), topic)


# {"id": …, "utterances": […]}
OBJECTS = ObjectReader((), partial(_object_dialog, ("utterances",)), bare=True)
CHATS = ObjectReader((), partial(_object_dialog, ("messages", "conversations")))


def listed_dialog(
    name: str,
    line: int,
    row: Mapping[str, Any],
    options: ReadOptions,
    log: InputLog,
    id: Any = UNNAMED,
    topic: Any = "",
) -> Dialog | None:
    """Dialog from the list of a row's text column.

    Without speakers, A and B alternate, unless all texts begin with their speaker, as in ``A: hello``. The
    columns of speakers and acts may have lists as long as that of the texts. Returns None, and logs it,
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
    items: Sequence[Any] = row[options.text_column]
    speakers, acts = row.get(options.speaker_column), row.get(options.act_column)
    if not isinstance(speakers, list):
        spoken = spoken_items(items)
        speakers = None if spoken else speakers_beside(row, len(items))
        items = spoken or items
    columns = (options.speaker_column, options.text_column, options.act_column)
    named = any(isinstance(item, dict) and _item_keys(tuple(item), *columns).speaker for item in items)
    for index, item in enumerate(items):
        text = item if isinstance(item, str) else None
        speaker = speakers[index] if isinstance(speakers, list) else None if named else "AB"[index % 2]
        act = acts[index] if isinstance(acts, list) else ""
        if isinstance(item, dict):
            keys = _item_keys(tuple(item), *columns)
            text = item.get(keys.text)
            speaker = item.get(keys.speaker, speaker)
            act = item.get(keys.act, act)
            if keys.role:
                text = _message_text(item[keys.role], text, name, line, log)
                if text is None:
                    continue
        if text is None:
            problem = f"an item of {options.text_column} is not an utterance"
        elif speaker is None:
            problem = f"an item of {options.text_column} has no speaker"
        else:
            yield RawUtterance(line, speaker, text, act)
            continue
        log.bad(name, line, problem, _ITEM, excerpt=repr(item))


class _ItemKeys(NamedTuple):
    """Keys of an item of a list, or None; ``role`` is that of a message of a chat."""

    speaker: str | None
    text: str | None
    act: str | None
    role: str | None


@lru_cache(maxsize=1024)  # the items of a file have few sets of keys
def _item_keys(keys: tuple[str, ...], speaker: str, text: str, act: str) -> _ItemKeys:
    """Keys named ``speaker``, ``text`` and ``act``, else those of a chat, else common ones."""
    usual = usual_keys(keys)
    role = next((key for key in ("role", "from") if key in keys), None)
    content = "content" if role and "content" in keys else usual.text
    return _ItemKeys(
        speaker if speaker in keys else role or usual.speaker,
        text if text in keys else content,
        act if act in keys else usual.act,
        role,
    )


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
