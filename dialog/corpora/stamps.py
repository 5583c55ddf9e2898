"""Time stamps of chat logs in the notations of common locales, and splitting of logs at long pauses."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from dialog.corpora.formats import PAUSE
from dialog.corpora.readers import RawUtterance, default_id, make_dialog
from dialog.utterance import Dialog
from lm.text.lines import InputLog

_DAY = timedelta(days=1)
_LATE = timedelta(hours=1)  # tolerance for late lines; a clock that falls by more has passed midnight

_SECOND_HALF = ("中午", "下午", "晚上", "오후", "午後", "p", "م", "μ")  # of the day, as its notation begins
_BEFORE = "凌晨|清晨|早上|上午|中午|下午|晚上|오전|오후|午前|午後"
_AFTER = r"[AaPp]\.?\s?[Mm]\.?|[صم]|[πμ]\.?μ\.?"  # English and Spanish, Arabic, Greek
_BAR = r"\u200f?[./-]\s?"  # Arabic dates have a mark of direction before it
DATE = rf"(\d{{1,4}}){_BAR}(\d{{1,2}}){_BAR}(\d{{1,4}})\.?(?:\s?г\.?)?"
TIME = rf"({_BEFORE})?\s?(\d{{1,2}})[:.](\d{{2}})(?:[:.](\d{{2}}))?(?:\s?({_AFTER}))?"
BETWEEN = r"[,،]?(?:T|\s+(?:(?:à|às|kl\.|klo|um)\s)?)"  # \s holds U+00A0 and U+202F
STAMPED = re.compile(rf"\W{{0,2}}(?:{DATE}{BETWEEN}{TIME}|{TIME})(?!\w)")
_ORDERS = ("dmy", "mdy", "ymd")


class Stamp(NamedTuple):
    """Parts of a time stamp as written. ``date`` is empty in logs with times only.

    ``days`` is the number of changes of the day that the log notes before it.
    """

    date: tuple[str, ...]
    hour: str
    minute: str
    second: str = ""
    late: bool | None = None  # half of the day; None in logs with 24 hours
    written: str = ""
    days: int = 0

    @classmethod
    def of(cls, match: re.Match[str], first: int = 1) -> "Stamp":
        """Build a stamp from the eight groups of DATE and TIME; ``first`` is the number of the first."""
        places = [match.span(group) for group in range(first, first + 8) if match[group] is not None]
        *date, before, hour, minute, second, after = match.groups("")[first - 1 : first + 7]
        half = (before or after).lower()
        late = half.startswith(_SECOND_HALF) if half else None
        written = match.string[places[0][0] : places[-1][1]]
        return cls(tuple(date) if date[0] else (), hour, minute, second, late, written)


class Message(NamedTuple):
    """A turn with its time, None if unknown, and the time of its last part, None if it has one part."""

    time: datetime | None
    turn: RawUtterance
    end: datetime | None = None

    @property
    def latest(self) -> datetime | None:
        """The time of its last part."""
        return self.end or self.time


def by_time(messages: Sequence[Message]) -> list[Message]:
    """Messages in the order of their times, which are known.

    Those of one time stay in the order of the file, which is turned round if it has the newest first.
    """
    times = [message.time for message in messages if message.time]
    return sorted(messages[::-1] if _is_newest_first(times) else messages, key=attrgetter("time"))


def _is_newest_first(times: Sequence[datetime]) -> bool:
    """True if at least nine in ten of the steps between different times lead back."""
    return _falls(times) > 9 * _rises(times)


def _falls(times: Sequence[datetime]) -> int:
    return sum(after < before for before, after in pairwise(times))


def _rises(times: Sequence[datetime]) -> int:
    return _falls(times[::-1])


def read_stamps(stamps: Sequence[Stamp], *, either_way: bool = False) -> list[datetime | None]:
    """Times of the messages of a log, None for an impossible date or time.

    The order of day, month and year is chosen once for the whole log. The best order makes most dates valid.
    Among equals, it has the fewest steps back in time, then mm/dd in logs with AM and PM, else dd/mm.
    With ``either_way``, the log may have the newest messages first. In stamps without a date, a noted change
    of the day begins the next day, and so does a time that falls by more than an hour.
    """
    preferred = "mdy" if any(stamp.late is not None for stamp in stamps) else "dmy"
    found: list[tuple[int, int, bool, list[datetime | None]]] = []
    for order in _ORDERS:
        times = [_time(stamp, order) for stamp in stamps]
        known = [time for time in times if time]
        backwards = min(_falls(known), _rises(known)) if either_way else _falls(known)
        found.append((times.count(None), backwards, order != preferred, times))
    times = min(found, key=lambda item: item[:3])[3]
    if either_way and _is_newest_first([time for time in times if time]):
        return read_stamps(stamps[::-1])[::-1]
    return _with_days(stamps, times)


def _with_days(stamps: Sequence[Stamp], times: Sequence[datetime | None]) -> list[datetime | None]:
    """Times with the days that have passed in stamps without a date."""
    found: list[datetime | None] = []
    days, latest = 0, datetime.min
    for stamp, time in zip(stamps, times, strict=True):
        if time is None or stamp.date:
            found.append(time)
            continue
        now = time + timedelta(days=days)
        if days > stamp.days and now - latest > _DAY - _LATE:  # a late line of before midnight
            found.append(now - _DAY)
            continue
        days = max(days + (latest - now > _LATE), stamp.days)
        latest = time + timedelta(days=days)
        found.append(latest)
    return found


def _time(stamp: Stamp, order: str) -> datetime | None:
    date = {"y": 1900, "m": 1, "d": 1}
    for part, digits in zip(order, stamp.date, strict=False):
        if len(digits) > (4 if part == "y" else 2) or (part == "y" and len(digits) < 4 and len(digits) != 2):
            return None
        date[part] = int(digits) + (2000 if part == "y" and len(digits) == 2 else 0)
    hour = int(stamp.hour)
    if stamp.late is not None:
        hour = hour % 12 + 12 * stamp.late
    try:
        return datetime(date["y"], date["m"], date["d"], hour, int(stamp.minute), int(stamp.second or 0))
    except ValueError:
        return None


def without_zone(time: datetime) -> datetime:
    """A time as it is where it was written, or in UTC if it has a zone."""
    return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time


def split_at_pauses(
    messages: Iterable[Message], name: str, log: InputLog, *, pause: timedelta = PAUSE, first: int = 0
) -> list[Dialog]:
    """Split a log into dialogs at every pause longer than ``pause``.

    A single message between two such pauses is dropped. The ids are ``<stem of the file>:<number>``, counted
    from ``first``.
    """
    blocks: list[list[RawUtterance]] = []
    latest: datetime | None = None
    for message in messages:
        if not blocks or (message.time and latest and message.time - latest > pause):
            blocks.append([])
        blocks[-1].append(message.turn)
        latest = message.latest or latest
    dialogs: list[Dialog] = []
    for turns in blocks:
        if len(turns) < 2:
            log.drop(name, turns[0].line, "single message between long pauses", str(turns[0].text))
            continue
        id = default_id(name, first + len(dialogs))
        dialog = make_dialog(name, turns[0].line, id, "", turns, log)
        if dialog is not None:
            dialogs.append(dialog)
    return dialogs
