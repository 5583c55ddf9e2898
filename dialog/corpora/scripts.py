"""Dialogs in other forms than a list of utterances: scripts of lines ``A: hello``, and lists by field."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from dialog.corpora.columns import ReadOptions, is_list_name, list_name, usual
from dialog.corpora.readers import PREFIX

_LONGEST, _WORDS = 20, 3  # characters and words of a name that occurs once
_WIDE = "："  # sentences have this colon too

Spoken = list[dict[str, Any]]


def script(text: str) -> Spoken | None:
    """Utterances of a text whose first line, and at least half of several, have the form ``A: hello``.

    Other lines continue the utterance before them, as do those with a name that occurs once and is long or
    begins with a small letter. None for any other text.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [PREFIX.match(line) for line in lines]
    if len(lines) < 2 or not found[0] or 2 * sum(map(bool, found)) < len(lines):
        return None
    names = Counter(match[1] for match in found if match)
    spoken: Spoken = []
    for line, match in zip(lines, found, strict=True):
        if match and (not spoken or names[match[1]] > 1 or _is_name(match[1])):
            spoken.append({"speaker": match[1], "text": match[2]})
        else:
            spoken[-1]["text"] += f" {line}"
    return spoken


def _is_name(text: str) -> bool:
    return len(text) <= _LONGEST and len(text.split()) <= _WORDS and not text[0].islower()


def utterances_of(value: Any) -> Spoken | None:
    """The utterances of a script, or of lists by field as in ``{"speaker": ["A"], "text": ["hello"]}``.

    Of lists of speakers, texts and acts that differ in length the shorter have None at their ends, which is
    an error where it is read. None for any other value.
    """
    if isinstance(value, str):
        return script(value)
    if not isinstance(value, dict):
        return None
    lists = {key: found for key, found in value.items() if isinstance(found, list)}
    text = usual("text", lists)
    if text is None:
        return None
    ours = (text, usual("speaker", lists), usual("act", lists))
    lists = {key: found for key, found in lists.items() if key in ours or len(found) == len(lists[text])}
    return [dict(zip(lists, fields, strict=True)) for fields in zip_longest(*lists.values())]


def with_list(row: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with lists of utterances instead of scripts and lists by field, unless it has a list."""
    if list_name(row) is not None:
        return row
    return row | {key: utterances_of(found) or found for key, found in row.items() if is_list_name(key)}


def scripted(row: dict[str, Any]) -> bool:
    """True if a JSON object has its utterances as a script or as lists by field."""
    return list_name(row) is None and list_name(with_list(row)) is not None


def spoken_items(items: Sequence[Any]) -> Spoken | None:
    """The items of a list as objects with speaker and text, if all are texts of the form ``A: hello``.

    One name occurs twice, or all are single words before a colon and a blank. No name is long. None for other
    items.
    """
    found = []
    for item in items:
        match = PREFIX.match(item.strip()) if isinstance(item, str) else None
        if match is None or not match[2] or len(match[1]) > _LONGEST:
            return None
        found.append(match)
    single = not any(" " in match[1] or _WIDE in match.string[: match.start(2)] for match in found)
    if len(found) < 2 or not (single or len({match[1] for match in found}) < len(found)):
        return None
    return [{"speaker": match[1], "text": match[2]} for match in found]


def script_columns(columns: Iterable[str], options: ReadOptions) -> list[str]:
    """Columns of a table that may have a script in each row: none beside a column of speakers or texts.

    It is the one that the options name, if that is there.
    """
    there = [*columns]
    if options.text_column in there:
        texts = [options.text_column]
    else:
        texts = [] if usual("text", there) else [column for column in there if is_list_name(column)]
    return [] if options.speaker_column in there or usual("speaker", there) else texts
