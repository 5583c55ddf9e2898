"""Reader of SRT subtitles, whose cues have times but no speakers."""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from dialog.corpora.readers import RawUtterance
from dialog.corpora.stamps import Message, split_at_pauses
from dialog.utterance import Dialog
from lm.text.lines import InputLog, NumberedLine

SCENE = timedelta(seconds=15)  # a longer time between the starts of two cues begins a new dialog
_TIME = r"(\d{1,3}):([0-5]\d):([0-5]\d)[,.](\d{1,3})"
TIMING = re.compile(rf"\s*{_TIME}\s*-->\s*\d[\d:,.]*(?:\s.*)?")
_MARKUP = re.compile(r"</?\w[^<>]*>|\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\)|[♪♫]")  # tags, sounds, songs


def read_srt(lines: Iterable[NumberedLine], name: str, log: InputLog) -> list[Dialog]:
    """Read cues of a number, a timing and lines of text, separated by blank lines.

    A cue is an utterance, or several if its lines begin with a dash. A cue that begins with a lower-case
    letter continues the utterance before it, unless the file has no upper case. Speakers A and B alternate.
    Tags and sounds are removed. A pause of more than fifteen seconds begins a new dialog.
    """
    messages: list[Message] = []
    lines = list(lines)
    cased = any(text != text.lower() for _, text in lines)
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
            shown = " ".join(_MARKUP.sub("", text).split())
            said = shown.lstrip("-–— ")
            if not said:
                log.drop(name, number, "sound", text)
                continue
            last = messages[-1] if messages else None
            near = last is not None and last.time is not None and start - last.time <= SCENE
            if last and near and said == shown and (begun or (cased and said[0].islower())):
                longer = last.turn._replace(text=f"{last.turn.text} {said}")
                messages[-1] = last._replace(turn=longer)
            else:
                messages.append(Message(start, RawUtterance(number, "AB"[len(messages) % 2], said)))
            begun = True
    return split_at_pauses(messages, name, log, pause=SCENE)
