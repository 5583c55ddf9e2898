"""Tables that have a message and its time in each row, and no column for dialogs."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import Any

from dialog.corpora.columns import ReadOptions, plain
from dialog.corpora.readers import RawUtterance, join_lines
from dialog.corpora.stamps import (
    BETWEEN,
    DATE,
    TIME,
    Message,
    Stamp,
    by_time,
    read_stamps,
    split_at_pauses,
    without_zone,
)
from dialog.utterance import Dialog
from lm.text.lines import InputLog

_TIMES = ("timestamp", "datetime", "sentat", "createdat", "ts", "date", "time")
# columns that tell conversations apart which go on at the same time
_APART = ("room", "roomid", "channel", "channelid", "group", "groupid", "subreddit", "linkid", "parentid",
          "replyto", "inreplyto", "inresponsetotweetid", "thread", "threadid", "threadts")  # fmt: skip
_STAMP = re.compile(rf"\W{{0,2}}(?:{DATE}{BETWEEN})?{TIME}\W?")
_DIGITS = {8: "%Y%m%d", 14: "%Y%m%d%H%M%S"}  # dates without punctuation, by their length
_BIG = 1e11  # a larger number of an epoch counts milliseconds
_EPOCH, _FIRST, _LAST = (datetime(year, 1, 1) for year in (1970, 1990, 2100))


def time_columns(columns: Iterable[Any]) -> list[str]:
    """The column of the time of a message, or those of its date and time; [] if there is none.

    Also [] in a table with a column such as ``room``, which tells dialogs apart better than pauses do.
    """
    known = {plain(column): str(column) for column in columns}
    if not known.keys().isdisjoint(_APART):
        return []
    if {"date", "time"} <= known.keys():
        return [known["date"], known["time"]]
    return [known[name] for name in _TIMES if name in known][:1]


def read_messages(
    rows: Iterable[tuple[int, Mapping[str, Any]]],
    columns: Sequence[str],
    name: str,
    options: ReadOptions,
    log: InputLog,
) -> list[Dialog]:
    """Dialogs of the messages of a table in the order of their times, which are in ``columns``.

    Messages without text are dropped. A pause of over six hours begins a new dialog.
    """
    found: list[tuple[Any, RawUtterance]] = []
    for line, row in rows:
        said, speaker = join_lines(row[options.text_column]), row[options.speaker_column]
        if said is None or said == "":
            log.drop(name, line, "message without text")
        else:
            turn = RawUtterance(line, speaker, said, row.get(options.act_column))
            found.append((_joined([row[column] for column in columns]), turn))
    messages: list[Message] = []
    for (value, turn), time in zip(found, read_times([value for value, _ in found]), strict=True):
        if time is None:
            remedy = "write times as in 2024-04-13 09:00, or add a column that names the dialog of each row"
            log.bad(name, turn.line, f"no time in {' and '.join(columns)}", remedy, excerpt=repr(value))
        else:
            messages.append(Message(time, turn))
    return split_at_pauses(by_time(messages), name, log)


def _joined(parts: Sequence[Any]) -> Any:
    """The time in one column, or the date in the first of two with the time in the second."""
    if len(parts) == 1:
        return parts[0]
    return f"{re.split('[ T]', str(parts[0]), maxsplit=1)[0]} {parts[1]}"


def read_times(values: Sequence[Any]) -> list[datetime | None]:
    """Times of a column, None for what is no time between 1990 and 2100.

    They are written as in ISO 8601, with digits alone, as numbers of seconds or milliseconds since 1970, or
    as in a chat log.
    """
    times = [_instant(value) for value in values]
    stamped = [_stamp(value) if time is None else None for value, time in zip(values, times, strict=True)]
    read = iter(read_stamps([stamp for stamp in stamped if stamp], either_way=True))
    found = [next(read) if stamp else time for stamp, time in zip(stamped, times, strict=True)]
    undated = [stamp is not None and not stamp.date for stamp in stamped]
    return [
        time if free or (time and _FIRST <= time < _LAST) else None
        for time, free in zip(found, undated, strict=True)
    ]


def _stamp(value: Any) -> Stamp | None:
    """A time in the notation of a chat log."""
    match = _STAMP.fullmatch(value) if isinstance(value, str) else None
    return match and Stamp.of(match)


def _instant(value: Any) -> datetime | None:
    with suppress(TypeError, ValueError, OverflowError):
        if isinstance(value, datetime):
            return without_zone(value)
        if isinstance(value, date):
            return datetime(value.year, value.month, value.day)
        digits = str(value)
        if isinstance(value, str) and not value.replace(".", "", 1).isdigit():
            return without_zone(datetime.fromisoformat(value))
        if len(digits) in _DIGITS and digits.startswith(("19", "20")):
            return datetime.strptime(digits, _DIGITS[len(digits)])
        seconds = float(value) / (1000 if float(value) > _BIG else 1)
        return _EPOCH + timedelta(seconds=seconds)
    return None
