"""Subtitles in SRT files, whose cues say when something is said and not by whom."""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from dialog.corpora.readers import Turn
from dialog.corpora.stamps import Message, split_at_pauses
from dialog.utterance import Dialog
from lm.text.lines import InputLog, Line

SCENE = timedelta(seconds=15)  # more from the beginning of a cue to that of the next ends a scene
_TIME = r"(\d{1,3}):([0-5]\d):([0-5]\d)[,.](\d{1,3})"
TIMING = re.compile(rf"\s*{_TIME}\s*-->\s*\d[\d:,.]*(?:\s.*)?")
_MARKUP = re.compile(r"</?\w[^<>]*>|\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\)|[♪♫]")  # tags, sounds, songs


def read_srt(lines: Iterable[Line], name: str, log: InputLog) -> list[Dialog]:
    """Cues of a number, a timing and lines of text; a blank line ends them.

    A cue is an utterance, or several if its lines begin with a dash; one that begins with a small letter
    goes on with that before it. The speakers A and B take turns. Tags and sounds are removed; a pause of
    more than fifteen seconds begins a new dialog.
    """
    messages: list[Message] = []
    start: datetime | None = None  # of the cue that the line belongs to
    begun = False  # something of it was said
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
                log.drop(name, number, "a sound", text)
                continue
            last = messages[-1] if messages else None
            near = last is not None and last.time is not None and start - last.time <= SCENE
            if last and near and said == shown and (begun or said[0].islower()):
                longer = last.turn._replace(text=f"{last.turn.text} {said}")
                messages[-1] = last._replace(turn=longer)
            else:
                messages.append(Message(start, Turn(number, "AB"[len(messages) % 2], said)))
            begun = True
    return split_at_pauses(messages, name, log, pause=SCENE)
