"""Readers of WhatsApp exports, IRC logs and SRT subtitles: texts with times."""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from dialog.corpora.formats import SCENE
from dialog.corpora.readers import RawUtterance, join_lines
from dialog.corpora.stamps import BETWEEN, DATE, TIME, Message, Stamp, read_stamps, split_at_pauses
from dialog.utterance import Dialog
from lm.text.lines import InputLog, NumberedLine

_MARKS = dict.fromkeys(map(ord, "\u200e\u200f\u202a\u202b\u202c\u2068\u2069\ufeff"))  # of direction

WHATSAPP = re.compile(
    rf"[\u200e\u200f]?(?:\[{DATE}{BETWEEN}{TIME}\]|{DATE}{BETWEEN}{TIME}\s+[-–])\s(.*)", re.DOTALL
)  # groups: stamp of iOS, stamp of Android, rest of the line
_SPEAKER = re.compile(r"([^:]{1,80}?):(?:\s|$)(.*)", re.DOTALL)
_QUOTED = re.compile('"[^"]*"|“[^”]*”|„[^“”]*[“”]|«[^»]*»')
_OPENED = re.compile(r'(?<!\S)["“„«]')  # and not closed: the colon behind it is in the name of a group
_OMITTED = (  # Android's placeholders of media, in angle brackets
    "Media omitted|Medien ausgeschlossen|Médias omis|Fichier omis|Multimedia omitido|Archivo omitido"
    "|Mídia oculta|Arquivo de mídia oculto|Ficheiro não revelado|Media omessi|Media omesso|Media weggelaten"
    "|Без медиафайлов|Medya dahil edilmedi|Pominięto multimedia|Media tidak disertakan|省略多媒体文件"
    "|媒體已略去|メディアなし|미디어 파일을 제외한 내보내기"
)
_ATTACHED = (  # Android's note after the name of an attached file
    "file attached|Datei angehängt|fichier joint|archivo adjunto|arquivo anexado|ficheiro anexado"
    "|file allegato|bestand bijgevoegd|файл добавлен|dosya ekli|plik dołączony|file terlampir|文件附件"
)
_DELETED = (
    "This message was deleted|You deleted this message|Diese Nachricht wurde gelöscht"
    "|Du hast diese Nachricht gelöscht|Ce message a été supprimé|Vous avez supprimé ce message"
    "|Se eliminó este mensaje|Eliminaste este mensaje|Mensagem apagada|Você apagou esta mensagem"
    "|Questo messaggio è stato eliminato|Hai eliminato questo messaggio|Dit bericht is verwijderd"
)
_KINDS = "image|video|audio|sticker|GIF|document|Contact card|video note"
_MEDIA = re.compile(
    rf"<(?:{_OMITTED}|[\w ]+ omitted)>|<[\w ]+: ?\S+\.\w{{2,4}}>|\S.*\.\w{{2,4}} \((?:{_ATTACHED})\)"
    rf"|(?:{_DELETED})\.?|(?:\S.* • .*)?(?:{_KINDS}) omitted",
    re.IGNORECASE,
)
_BEHIND = re.compile(rf" ?\u200e(?:{_KINDS}) omitted$")  # the placeholder after a caption on iOS
_EDITED = re.compile(r" ?(?:\u200e?<This message was edited>|\u200e<[^<>]+>)$")
_IMPOSSIBLE = "no such date or time", "correct the time stamp"
_LONGEST = 300  # characters of a placeholder

_NICK = r"<[\s@+%&~]?([^\s>]+)>"
_DATED = rf"\[?(?:{DATE}[T\s]+)?{TIME}\]?\s+"
IRC = re.compile(rf"(?:{_DATED})?{_NICK}(?:\s(.*)|$)", re.DOTALL)
_ACTION = re.compile(rf"(?:{_DATED})?\*\s+(\S+)\s+(.*)", re.DOTALL)
_EVENT = re.compile(rf"(?:{_DATED})?(?:-!-|\*\*\*|===|---|-->|<--|[-*]\S*[-*]|[→←⇐⇒])(?:\s.*|$)", re.DOTALL)
_DAY_CHANGED = re.compile(r"---\s+Day changed\b")
_COMING = re.compile(  # what follows the name of somebody who comes, goes or changes the channel
    r"(?:[(\[].*[)\]] (?:has )?|has )(?:joined|left|quit|parted)\b"
    r"|(?:joined|left|quit|parted)(?:\s+(?:[#&(]|the (?:channel|chat|room)\b)|$)|is now known as "
    r"|(?:sets|changes|removes|gives) (?:the )?(?:modes?|topic|ban|quiet|exempt|invite|channel)\b"
)

_CUE_TIME = r"(\d{1,3}):([0-5]\d):([0-5]\d)[,.](\d{1,3})"
TIMING = re.compile(rf"\s*{_CUE_TIME}\s*-->\s*\d[\d:,.]*(?:\s.*)?")
_MARKUP = re.compile(r"</?\w[^<>]*>|\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\)|[♪♫]")  # tags, sounds, songs
_DASHES = "-–— "  # before an utterance of a cue that has several


def _name(text: str) -> str:
    """Speaker name without direction marks and without the tilde of unknown contacts."""
    return text.translate(_MARKS).strip().removeprefix("~").strip()


def read_whatsapp(lines: Iterable[NumberedLine], name: str, log: InputLog) -> list[Dialog]:
    """Read an export: ``01/04/2024, 09:00 - Anna: hello``, or on iOS ``[01/04/2024, 09:00:12] Anna: …``.

    A message may span several lines. Notices without a speaker and media placeholders are dropped. A pause
    of more than six hours begins a new dialog.
    """
    found: list[tuple[int, Stamp, list[str]]] = []
    for number, text in lines:
        match = WHATSAPP.fullmatch(text)
        if match:
            groups = match.groups()
            stamp = Stamp.of(match, 1 if groups[0] else 9)
            found.append((number, stamp, [groups[16]]))
        elif found:
            found[-1][2].append(text)
        elif text.translate(_MARKS).strip():
            remedy = "begin every message with its date and time"
            log.bad(name, number, "no time stamp", remedy, excerpt=text)
    messages = []
    times = read_stamps([stamp for _, stamp, _ in found])
    for (number, stamp, parts), time in zip(found, times, strict=True):
        text = "\n".join(parts)
        if time is None:
            log.bad(name, number, *_IMPOSSIBLE, excerpt=stamp.written)
            continue
        spoken = _SPEAKER.fullmatch(text)
        said = _without_media(spoken[2]) if spoken and not _opens_quotes(spoken[1]) else ""
        if spoken is None or not said:
            log.drop(name, number, "notice or media", text)
            continue
        messages.append(Message(time, RawUtterance(number, _name(spoken[1]), said)))
    return split_at_pauses(messages, name, log)


def _opens_quotes(text: str) -> bool:
    """True if a text opens quotes that it does not close."""
    return _OPENED.search(_QUOTED.sub("", text)) is not None


def _without_media(written: str) -> str:
    """The text of a message on one line, without placeholders; "" for nothing else."""
    first, *caption = written.splitlines() or [""]
    said = "\n".join(caption) if caption and _is_media(first) else written
    placed = said.startswith("\u200e") and "\n" not in said  # placeholder of WhatsApp on iOS
    said = _EDITED.sub("", join_lines(said))
    return "" if placed or _is_media(said) else _BEHIND.sub("", said).translate(_MARKS).strip()


def _is_media(text: str) -> bool:
    """True if a text is a placeholder of media or of a deleted message."""
    text = text.translate(_MARKS).strip()
    return len(text) <= _LONGEST and _MEDIA.fullmatch(text) is not None


class _Said(NamedTuple):
    line: int
    stamp: Stamp | None
    nick: str
    text: str


def is_irc(text: str) -> bool:
    """True if a line is a message, an action or an event of an IRC log."""
    return any(pattern.fullmatch(text) for pattern in (IRC, _ACTION, _EVENT))


def read_irc(lines: Iterable[NumberedLine], name: str, log: InputLog) -> list[Dialog]:
    """Read a channel log: ``[12:34] <nick> text``, ``2004-11-23 12:34 <nick> text`` or ``12:34 <nick> text``.

    Joins, parts and other channel events are dropped. ``* nick waves`` becomes ``/me waves``. A pause of more
    than six hours begins a new dialog.
    """
    found: list[_Said] = []
    days = 0
    for number, text in lines:
        text = text.strip()
        match = IRC.fullmatch(text) or _ACTION.fullmatch(text)
        if match is None and _EVENT.fullmatch(text):
            days += _DAY_CHANGED.match(text) is not None
            log.drop(name, number, "channel event", text)
        elif match is None:
            if text:
                form = "expected `[12:34] <nick> text`, `* nick text` or an event"
                log.bad(name, number, "not a line of an IRC log", form, excerpt=text)
        else:
            nick, said = match.groups()[8:]
            said = said or ""
            stamp = Stamp.of(match)._replace(days=days) if match[5] else None
            if match.re is _ACTION and _COMING.match(said):
                log.drop(name, number, "channel event", text)
            elif not said.strip():
                log.drop(name, number, "empty message", text)
            else:
                found.append(_Said(number, stamp, nick, f"/me {said}" if match.re is _ACTION else said))
    known = iter(read_stamps([said.stamp for said in found if said.stamp]))
    messages = []
    for said in found:
        time = next(known) if said.stamp else None
        if said.stamp and time is None:
            log.bad(name, said.line, *_IMPOSSIBLE, excerpt=said.stamp.written)
            continue
        messages.append(Message(time, RawUtterance(said.line, said.nick, said.text)))
    return split_at_pauses(messages, name, log)


def read_srt(lines: Iterable[NumberedLine], name: str, log: InputLog) -> list[Dialog]:
    """Read cues of a number, a timing and lines of text, separated by blank lines.

    A cue is an utterance, or several if its lines begin with a dash. A cue that begins with a lower-case
    letter continues the utterance before it, unless most cues of the file do. Speakers A and B alternate.
    Tags and sounds are removed. A pause of more than fifteen seconds begins a new dialog.
    """
    messages: list[Message] = []
    lines = list(lines)
    beginnings = [_shown(after) for (_, before), (_, after) in pairwise(lines) if TIMING.fullmatch(before)]
    cased = 2 * sum(text.lstrip(_DASHES)[:1].islower() for text in beginnings) <= len(beginnings)
    start: datetime | None = None  # of the cue that the line belongs to
    begun = False  # the cue has had an utterance
    for number, text in lines:
        timing = TIMING.fullmatch(text)
        if timing:
            hours, minutes, seconds, fraction = timing.groups()
            passed = timedelta(hours=int(hours), minutes=int(minutes), seconds=float(f"{seconds}.{fraction}"))
            start, begun = datetime.min + passed, False
        elif not text.strip():
            start = None
        elif start is None:
            if not text.strip().isdecimal():
                expected = "expected the number of a cue or its timing"
                log.bad(name, number, "not part of a subtitle", expected, excerpt=text)
        else:
            shown = _shown(text)
            said = shown.lstrip(_DASHES)
            if not said:
                log.drop(name, number, "sound", text)
                continue
            last = messages[-1] if messages else None
            near = last is not None and last.latest is not None and start - last.latest <= SCENE
            if last and near and said == shown and (begun or (cased and said[0].islower())):
                longer = last.turn._replace(text=f"{last.turn.text} {said}")
                messages[-1] = last._replace(turn=longer, end=start)
            else:
                messages.append(Message(start, RawUtterance(number, "AB"[len(messages) % 2], said)))
            begun = True
    return split_at_pauses(messages, name, log, pause=SCENE)


def _shown(text: str) -> str:
    """A line of a subtitle without tags and sounds."""
    return " ".join(_MARKUP.sub("", text).split())
