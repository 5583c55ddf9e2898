"""Exports of WhatsApp and logs of IRC: stamped lines, with notices between what people say."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from dialog.corpora.readers import Turn, one_line
from dialog.corpora.stamps import DATE, TIME, Message, Stamp, read_stamps, split_at_pauses
from dialog.utterance import Dialog
from lm.text.lines import InputLog, Line

_MARKS = dict.fromkeys(map(ord, "\u200e\u200f\u202a\u202b\u202c\u2068\u2069\ufeff"))  # of direction

WHATSAPP = re.compile(
    rf"\u200e?(?:\[{DATE},?\s+{TIME}\]|{DATE},?\s+{TIME}\s+[-–])\s(.*)", re.DOTALL
)  # the groups of iOS, those of Android, and what follows
_SPEAKER = re.compile(r"([^:]{1,80}?):(?:\s|$)(.*)", re.DOTALL)
_OMITTED = (  # what Android writes in angle brackets instead of media
    "Media omitted|Medien ausgeschlossen|Médias omis|Fichier omis|Multimedia omitido|Archivo omitido"
    "|Mídia oculta|Arquivo de mídia oculto|Ficheiro não revelado|Media omessi|Media omesso|Media weggelaten"
    "|Без медиафайлов|Medya dahil edilmedi|Pominięto multimedia|Media tidak disertakan|省略多媒体文件"
    "|媒體已略去|メディアなし|미디어 파일을 제외한 내보내기"
)
_ATTACHED = (  # what it writes after the name of a file
    "file attached|Datei angehängt|fichier joint|archivo adjunto|arquivo anexado|ficheiro anexado"
    "|file allegato|bestand bijgevoegd|файл добавлен|dosya ekli|plik dołączony|file terlampir|文件附件"
)
_DELETED = (
    "This message was deleted|You deleted this message|Diese Nachricht wurde gelöscht"
    "|Du hast diese Nachricht gelöscht|Ce message a été supprimé|Vous avez supprimé ce message"
    "|Se eliminó este mensaje|Eliminaste este mensaje|Mensagem apagada|Você apagou esta mensagem"
    "|Questo messaggio è stato eliminato|Hai eliminato questo messaggio|Dit bericht is verwijderd"
)
_MEDIA = re.compile(
    rf"<(?:{_OMITTED})>|<[\w ]+: ?\S+\.\w{{2,4}}>|\S.*\.\w{{2,4}} \((?:{_ATTACHED})\)|(?:{_DELETED})\.?"
    r"|(?:image|video|audio|sticker|GIF|document|Contact card) omitted",
    re.IGNORECASE,
)
_EDITED = re.compile(r" ?(?:\u200e?<This message was edited>|\u200e<[^<>]+>)$")
_LONGEST = 300  # characters of a placeholder

_NICK = r"<[\s@+%&~]?([^\s>]+)>"
_DATED = rf"\[?(?:{DATE}[T\s]+)?{TIME}\]?\s+"
IRC = re.compile(rf"(?:{_DATED})?{_NICK}(?:\s(.*)|$)", re.DOTALL)
_ACTION = re.compile(rf"(?:{_DATED})?\*\s+(\S+)\s+(.*)", re.DOTALL)
_EVENT = re.compile(rf"(?:{_DATED})?(?:-!-|\*\*\*|===|---|-->|<--|[-*]\S*[-*]|[→←⇐⇒])(?:\s.*|$)", re.DOTALL)
_COMING = re.compile(
    r"(?:[(\[].*[)\]] )?(?:(?:has )?(?:joined|left|quit|parted)\b|is now known as |(?:sets|changes) )"
)


def _name(text: str) -> str:
    """A speaker without marks, and without the tilde of those who are not in the address book."""
    return text.translate(_MARKS).strip().removeprefix("~").strip()


def read_whatsapp(lines: Iterable[Line], name: str, log: InputLog) -> list[Dialog]:
    """An exported chat: ``01/04/2024, 09:00 - Anna: hello``, or on iOS ``[01/04/2024, 09:00:12] Anna: …``.

    A message may have several lines. Notices, which nobody says, and placeholders of media are left out;
    a pause of more than six hours begins a new dialog.
    """
    found: list[tuple[int, Stamp, list[str]]] = []
    for number, text in lines:
        match = WHATSAPP.fullmatch(text)
        if match:
            groups = match.groups()
            stamp = Stamp.of(groups[:7] if groups[0] else groups[7:14])
            found.append((number, stamp, [groups[14]]))
        elif found:
            found[-1][2].append(text)
        elif text.translate(_MARKS).strip():
            log.bad(name, number, "no time stamp", "a message begins with its date and time", excerpt=text)
    messages = []
    times = read_stamps([stamp for _, stamp, _ in found])
    for (number, _, parts), time in zip(found, times, strict=True):
        text = "\n".join(parts)
        if time is None:
            log.bad(name, number, "no such date or time", "mend it", excerpt=text)
            continue
        spoken = _SPEAKER.fullmatch(text)
        said = _EDITED.sub("", one_line(spoken[2])) if spoken else ""
        placed = said.startswith("\u200e") and len(parts) == 1  # by WhatsApp on iOS
        said = said.translate(_MARKS).strip()
        if spoken is None or not said or placed or (len(said) <= _LONGEST and _MEDIA.fullmatch(said)):
            log.drop(name, number, "a notice or media", text)
            continue
        messages.append(Message(time, Turn(number, _name(spoken[1]), said)))
    return split_at_pauses(messages, name, log)


class _Said(NamedTuple):
    line: int
    stamp: Stamp | None
    nick: str
    text: str


def is_irc(text: str) -> bool:
    """Whether a line is of an IRC log."""
    return any(pattern.fullmatch(text) for pattern in (IRC, _ACTION, _EVENT))


def read_irc(lines: Iterable[Line], name: str, log: InputLog) -> list[Dialog]:
    """The log of a channel: ``[12:34] <nick> text``, ``2004-11-23 12:34 <nick> text``, ``12:34 <nick> text``.

    Who comes, goes or changes something is left out. ``* nick waves`` becomes ``/me waves``. A pause of
    more than six hours begins a new dialog.
    """
    found: list[_Said] = []
    for number, text in lines:
        text = text.strip()
        match = IRC.fullmatch(text) or _ACTION.fullmatch(text)
        if match is None and _EVENT.fullmatch(text):
            log.drop(name, number, "who comes, goes or changes something", text)
        elif match is None:
            if text:
                form = "expected `[12:34] <nick> text`, `* nick text` or an event"
                log.bad(name, number, "not a line of an IRC log", form, excerpt=text)
        else:
            *groups, nick, said = match.groups()
            said = said or ""
            stamp = Stamp.of(groups) if groups[3] else None
            if match.re is _ACTION and _COMING.match(said):
                log.drop(name, number, "who comes, goes or changes something", text)
            elif not said.strip():
                log.drop(name, number, "nothing said", text)
            else:
                found.append(_Said(number, stamp, nick, f"/me {said}" if match.re is _ACTION else said))
    known = iter(read_stamps([said.stamp for said in found if said.stamp]))
    messages = []
    for said in found:
        time = next(known) if said.stamp else None
        if said.stamp and time is None:
            log.bad(name, said.line, "no such date or time", "mend it", excerpt=said.text)
            continue
        messages.append(Message(time, Turn(said.line, said.nick, said.text)))
    return split_at_pauses(messages, name, log)
