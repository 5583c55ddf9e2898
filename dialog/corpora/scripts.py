"""Dialogs in other forms than a list of utterances: scripts of lines ``A: hello``, and lists by field."""

from collections.abc import Iterable, Sequence
from typing import Any

from dialog.corpora.columns import ReadOptions, is_list_name, usual
from dialog.corpora.readers import PREFIX


def script(text: Any) -> list[dict[str, str]] | None:
    """Utterances of a text whose first line, and at least half of several, have the form ``A: hello``.

    Other lines continue the utterance before them. None for any other value.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] if isinstance(text, str) else []
    found = [PREFIX.match(line) for line in lines]
    if len(lines) < 2 or not found[0] or 2 * sum(map(bool, found)) < len(lines):
        return None
    spoken: list[dict[str, str]] = []
    for line, match in zip(lines, found, strict=True):
        if match:
            spoken.append({"speaker": match[1], "text": match[2]})
        else:
            spoken[-1]["text"] += f" {line}"
    return spoken


def utterances(value: Any) -> Any:
    """The utterances of a script, or of lists by field as in ``{"speaker": ["A"], "text": ["hello"]}``.

    Another value is returned as it is.
    """
    if not isinstance(value, dict):
        return script(value) or value
    lists = {key: found for key, found in value.items() if isinstance(found, list)}
    if len({*map(len, lists.values())}) != 1 or not usual("text", lists):
        return value
    return [dict(zip(lists, fields, strict=True)) for fields in zip(*lists.values(), strict=True)]


def spoken_items(items: Sequence[Any]) -> Sequence[Any]:
    """The items of a list as objects with speaker and text, if all are texts of the form ``A: hello``."""
    found = [PREFIX.match(item.strip()) if isinstance(item, str) else None for item in items]
    if len(items) > 1 and all(found):
        return [{"speaker": match[1], "text": match[2]} for match in found if match]
    return items


def script_columns(columns: Iterable[str], options: ReadOptions) -> list[str]:
    """Columns of a table that may have a script in each row: none beside a column of speakers."""
    there = [*columns]
    if options.speaker_column in there or usual("speaker", there):
        return []
    return [column for column in there if column == options.text_column or is_list_name(column)]
