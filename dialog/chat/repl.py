"""A chat as lines in and lines out: lines for the model, and commands that begin with a slash."""

import os
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dialog.chat.conversation import SAYS_NOTHING, Conversation, Exchange, SideBySide
from dialog.chat.ctrl_c import CTRL_C
from dialog.chat.settings import (
    MOST_IN_CHAT,
    SCORES,
    changed,
    setting_rows,
    split_settings,
    summary,
    without,
)
from dialog.chat.transcript import (
    HUMAN,
    MODEL,
    difference,
    one_line,
    other_settings,
    other_weights,
    read_transcript,
)
from dialog.decoding.config import GREEDY, ONE_GROUP
from dialog.metrics.distinct import loops
from dialog.utterance import Utterance
from lm.config.suggest import did_you_mean
from lm.console.terminal import sanitize
from lm.errors import ConfigError, HighrankError, Interrupted
from lm.text.tokenizers import WordPunct
from lm.text.vocabulary import unknown_words

WIDTH, COLUMN = 60, 15  # width of lists of commands and settings, and of their first column
RECENT = 20  # exchanges in which equal replies count
SAME_REPLIES = 3  # different lines with an equal reply that cause a hint
SHORT = {"T": "temperature", "on": "temperature_on"}  # in /sample


class Repl:
    """Interpreter of chat lines. It never raises for the content of a line, and prints nothing.

    ``notes`` holds remarks about the last line, besides its answers. ``open_run`` opens a run for /compare.
    """

    def __init__(
        self, conversation: Conversation, open_run: Callable[[Path], Conversation] | None = None
    ) -> None:
        self.conversation, self._open_run = conversation, open_run
        self.beside: SideBySide | None = None
        self.shown = 1  # number of listed hypotheses, with scores if several
        self.ended = False
        self.notes: list[str] = []
        self._hinted = False  # once in a conversation

    def feed(self, line: str) -> list[str]:
        """The lines of :meth:`answers` as a list."""
        return list(self.answers(line))

    def answers(self, line: str) -> Iterator[str]:
        """Yield the answers to ``line``, sanitised and without line breaks.

        An exception during a reply leaves the conversation unchanged.
        """
        self.notes = []
        text = one_line(line)
        try:
            for answer in self._command(text) if text.startswith("/") else self._say(text):
                yield _safe(answer)
        except Interrupted:
            yield "(stopped)"
        except HighrankError as error:
            yield _safe(str(error))

    def _say(self, text: str) -> list[str]:
        if not text:
            return []
        if unknown := unknown_words(self.conversation.model.codec, text):
            self.notes.append(unknown)
        said = self.conversation.say(text)
        return self._replied(said) if self.beside is None else self._with_hint(self.beside.answers(said))

    def _with_hint(self, answers: list[str]) -> list[str]:
        """The answers of two runs, with a hint about the reply of the first."""
        self._note_hint(self.conversation.exchanges[-1])
        return answers

    def _note_hint(self, exchange: Exchange) -> None:
        if not self._hinted and (hint := self._hint(exchange)):
            self.notes.append(hint)
            self._hinted = True

    def _replied(self, exchange: Exchange) -> list[str]:
        self._note_hint(exchange)
        if exchange.refused:
            return [exchange.reply.text or SAYS_NOTHING] if exchange.texts else ["(no reply)"]
        return self._list(exchange)

    def _list(self, exchange: Exchange) -> list[str]:
        """The hypotheses that are shown, with scores if there are several."""
        listed = list(zip(exchange.hypotheses, exchange.texts, strict=True))[: self.shown]
        if len(listed) < 2:
            return [exchange.reply.text or SAYS_NOTHING] if exchange.texts else ["(no reply)"]
        found = Counter(text for _, text in listed)
        best = {text: hypothesis for hypothesis, text in reversed(listed)}
        return [
            f"{number}. {best[text].score:9.3f}  {text or SAYS_NOTHING}"
            f"{'' if best[text].finished else ' …'}{f'  ({times} times)' if times > 1 else ''}"
            for number, (text, times) in enumerate(found.items(), start=1)
        ]

    def _hint(self, exchange: Exchange) -> str:
        """A hint, with a remedy, about a loop or an equal reply to different lines; else empty."""
        reply, decode = exchange.reply.text, self.conversation.decode
        by_words = self.conversation.model.codec.tokenizer.kind in ("wordpunct", "whitespace")
        recent = self.conversation.exchanges[-RECENT:]
        draw = "/sample draws others" if decode.method == "beam" else "a higher temperature draws others"
        if loops(WordPunct().split(reply)):
            remedy = f"/set no_repeat_ngram=3 forbids that, {draw}" if by_words else draw
            return f"the reply goes round in a loop: {remedy}"
        if (
            reply
            and len({one.said.text.casefold() for one in recent if one.reply.text == reply}) >= SAME_REPLIES
        ):
            return f"the same reply to different lines: {draw}, /nbest 5 lists what else was found"
        return ""

    def _command(self, text: str) -> Iterable[str]:
        name, _, rest = text[1:].partition(" ")
        name, rest = name.lower(), rest.strip()
        if name not in COMMANDS:
            hint = did_you_mean(f"/{name[:40]}", [f"/{known}" for known in COMMANDS])
            return [f"unknown command /{name[:40]}{hint or ';'} /help lists them"]
        command = COMMANDS[name]
        arguments = [rest] if command.takes_line and rest else rest.split()
        if not command.least <= len(arguments) <= command.most:
            raise ConfigError(f"use {command.usage}")
        return command.run(self, arguments)

    def _help(self, arguments: list[str]) -> list[str]:
        rows = [(command.usage, command.about) for command in COMMANDS.values()]
        return [*_listed(rows), *textwrap.wrap(SCORES[self.conversation.decode.select], WIDTH)]

    def _begin(self) -> None:
        self.conversation.exchanges.clear()
        self.beside = None
        self._hinted = False

    def _reset(self, arguments: list[str]) -> list[str]:
        self._begin()
        return ["(a new conversation)"]

    def _undo(self, arguments: list[str]) -> list[str]:
        if not self.conversation.exchanges:
            return ["(nothing to take back)"]
        if self.beside:
            self.beside.undo()
        return [f"(took back: {self.conversation.exchanges.pop().said.text})"]

    def _retry(self, arguments: list[str]) -> list[str]:
        if not self.conversation.exchanges:
            return ["(nothing to answer again)"]
        if self.beside:
            return self._with_hint(self.beside.retry())
        exchange = self.conversation.retry()
        if exchange is None:
            return ["(no other reply was found; a larger decode.nbest keeps more, /sample draws others)"]
        return self._replied(exchange)

    def _change(self, command: str, settings: Sequence[str]) -> None:
        """Apply ``KEY=VALUE`` texts to decoding, all or none. ConfigError names the command."""
        conversation = self.conversation
        decode = changed(conversation.model, conversation.decode, command, settings)
        if self.beside:
            self.beside.require(decode)
        conversation.decode = decode

    def _set(self, arguments: list[str]) -> list[str]:
        decode = self.conversation.decode
        if not arguments:
            return list(_listed(setting_rows(decode)))
        self._change("set", split_settings(arguments[0]))
        return [f"({difference(self.conversation.decode, decode) or 'as it was'})"]

    def _nbest(self, arguments: list[str]) -> list[str]:
        count = _whole("nbest", arguments[0])
        self._change("nbest", [f"nbest={count}"])
        self.shown = count
        if count == 1:
            return ["(the best)"]
        if self.beside:
            return [f"(the {count} best, after /compare; now the best of each run)"]
        last = self.conversation.exchanges[-1:]
        kept = min((len(exchange.hypotheses) for exchange in last), default=count)
        fewer = f"; the last reply has only {kept}" if kept < count else ""
        lines = [line for exchange in last for line in self._list(exchange)]
        return [f"(the {count} best{fewer})", *(lines if kept > 1 else [])]

    def _beam(self, arguments: list[str]) -> list[str]:
        self._change("beam", ["method=beam", f"beam={arguments[0]}"])
        return [self._settings()]

    def _greedy(self, arguments: list[str]) -> list[str]:
        return self._with_defaults("greedy", GREEDY, [])

    def _sample(self, arguments: list[str]) -> list[str]:
        pairs = [argument.partition("=") for argument in arguments]
        settings = [f"{SHORT.get(key, key)}{is_}{value}" for key, is_, value in pairs]
        return self._with_defaults("sample", {**ONE_GROUP, "method": "sample"}, settings)

    def _with_defaults(self, command: str, usual: Mapping[str, Any], settings: Sequence[str]) -> list[str]:
        """Apply settings with the values that they need of others. Name those that this changed."""
        before = self.conversation.decode
        self._change(command, [*(f"{key}={value}" for key, value in usual.items()), *settings])
        return [self._settings(), *without(before, usual)]

    def _seed(self, arguments: list[str]) -> list[str]:
        self._change("seed", [f"seed={arguments[0]}"])
        return [self._settings()]

    def _settings(self) -> str:
        return f"({summary(self.conversation.decode)})"

    def _probs(self, arguments: list[str]) -> list[str]:
        count = _whole("probs", arguments[0]) if arguments else 5
        with CTRL_C.ends_reply():
            steps = self.conversation.probabilities(count)
        if steps is None:
            return ["(no reply to look into yet)"]
        lines = []
        for step in steps:
            prior = f"   prior {_row(step.prior, ' ')}" if len(step.prior) > 1 else ""
            lines.append(f"{step.token}  {step.prob:.4f}{prior}")
            for token, prob, shares in step.top:
                lines.append(
                    f"    {prob:.4f}  {token}" + (f"  = {_row(shares, ' + ')}" if len(shares) > 1 else "")
                )
        return lines

    def _compare(self, arguments: list[str]) -> list[str]:
        if not arguments:
            self.beside = None
            return ["(one run again)"]
        if self._open_run is None:
            return ["(no other run can be opened here)"]
        with CTRL_C.ends_reply():
            second = self._open_run(_path(arguments))
        beside = SideBySide(self.conversation, second)
        beside.require(self.conversation.decode)
        self.beside = beside
        return [f"(every line is answered by {' and '.join(self.beside.names)})"]

    def _show(self, arguments: list[str]) -> list[str]:
        heard = self.conversation.next_example(Utterance(HUMAN, "")).context[:-1]
        return [self._settings(), *(f"{u.speaker or ' '}  {u.text}" for u in heard)]

    def _history(self, arguments: list[str]) -> list[str]:
        lines = [
            line
            for exchange in self.conversation.exchanges
            for line in (f"{HUMAN}  {exchange.said.text}", f"{MODEL}  {exchange.reply.text or SAYS_NOTHING}")
        ]
        return lines or ["(nothing was said yet)"]

    def _save(self, arguments: list[str]) -> list[str]:
        if not self.conversation.exchanges:
            return ["(nothing to save yet)"]
        path = _path(arguments)
        return [f"(saved {self.conversation.save(path)} utterances to {path})"]

    def _load(self, arguments: list[str]) -> list[str]:
        turns = read_transcript(_path(arguments))
        self._begin()
        self.conversation.go_on_from(turns)
        others = {turn.model.run for turn in turns if turn.model and turn.model != self.conversation.source}
        of = f"; replies of {', '.join(sorted(others))}" if others else ""
        exchanges = "1 line and its reply" if len(turns) == 1 else f"{len(turns)} lines and their replies"
        return [f"(goes on after {exchanges}{of})"]

    def _replay(self, arguments: list[str]) -> Iterator[str]:
        return self.replay(_path(arguments))

    def replay(self, path: Path) -> Iterator[str]:
        """Replay the human's lines of a saved conversation. Yield the old and new reply of each.

        Decoding uses the current settings, and later lines follow the new replies. The conversation continues
        after the last line. An exception leaves it unchanged. Raises the errors of :func:`read_transcript`.
        """
        turns = read_transcript(path)
        conversation = self.conversation
        again = Conversation(conversation.model, conversation.decode, conversation.source)
        for note in (other_weights(turns, conversation.source), other_settings(turns, conversation.decode)):
            if note:
                yield _safe(note)
        same = 0
        for turn in turns:
            reply = again.say(turn.said).reply.text
            same += reply == turn.reply
            yield f"{HUMAN}    {turn.said}"
            old, new = (f"{text or SAYS_NOTHING}" for text in (turn.reply, reply))
            yield from [f"both {new}"] if reply == turn.reply else [f"old  {old}", f"new  {new}"]
        self._begin()
        conversation.exchanges += again.exchanges
        yield f"({same} of {len(turns)} replies are the same)"

    def _quit(self, arguments: list[str]) -> list[str]:
        self.ended = True
        return []


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its usage, its help, its method, and its numbers of arguments."""

    usage: str
    about: str
    run: Callable[[Repl, list[str]], Iterable[str]]
    least: int = 0
    most: int = 0
    takes_line: bool = False  # one argument, which may hold blanks


COMMANDS = {
    "help": Command("/help", "this list", Repl._help),
    "reset": Command("/reset", "begin a new conversation", Repl._reset),
    "undo": Command("/undo", "take back the last line and its reply", Repl._undo),
    "retry": Command(
        "/retry", "another reply to the last line: a new draw, or the next best of a beam", Repl._retry
    ),
    "nbest": Command("/nbest N", "list the N best replies, now and later, with scores", Repl._nbest, 1, 1),
    "beam": Command("/beam N", "beam search with N beams", Repl._beam, 1, 1),
    "greedy": Command("/greedy", "the most probable token at every step", Repl._greedy),
    "sample": Command(
        "/sample [T=0.8] [top_k=40] [top_p=0.9] [on=components]", "sample replies", Repl._sample, 0, 4
    ),
    "seed": Command("/seed N", "same conversation, same seed: same sample", Repl._seed, 1, 1),
    "set": Command(
        "/set [KEY=VALUE …]", "change any setting of decoding; alone: list them", Repl._set, 0, 1, True
    ),
    "probs": Command(
        "/probs [N]", "the N likeliest tokens at each step of the last reply, by component", Repl._probs, 0, 1
    ),
    "compare": Command(
        "/compare RUN", "answer with another run beside this one; alone: stop", Repl._compare, 0, 1, True
    ),
    "show": Command("/show", "the settings, and what the model still hears", Repl._show),
    "history": Command("/history", "all that was said", Repl._history),
    "save": Command(
        "/save FILE", "write the conversation as JSON lines, a corpus of turns", Repl._save, 1, 1, True
    ),
    "load": Command("/load FILE", "go on from a saved conversation", Repl._load, 1, 1, True),
    "replay": Command(
        "/replay FILE",
        "say its lines again in a new conversation; shows old and new replies",
        Repl._replay,
        1,
        1,
        True,
    ),
    "quit": Command("/quit", "leave", Repl._quit),
}


def _listed(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Lines of two columns. The second is wrapped, and a wide first one has its own line."""
    for name, about in rows:
        lines = textwrap.wrap(about, WIDTH - COLUMN, break_long_words=False, break_on_hyphens=False)
        yield f"{name:{COLUMN}}{lines.pop(0)}" if lines and len(name) < COLUMN else name
        yield from (f"{'':{COLUMN}}{line}" for line in lines)


def _path(arguments: list[str]) -> Path:
    return Path(os.path.expanduser(arguments[0]))


def _safe(text: str) -> str:
    """``text`` without terminal controls and line breaks."""
    return sanitize(text).replace("\n", " ")


def _row(values: Sequence[float], between: str) -> str:
    return between.join(f"{value:.4f}" for value in values)


def _whole(command: str, text: str) -> int:
    value = int(text) if re.fullmatch(r"\d{1,4}", text, re.ASCII) else 0
    if not 1 <= value <= MOST_IN_CHAT:
        raise ConfigError(f"/{command}: expected a whole number from 1 to {MOST_IN_CHAT}, got {text[:40]}")
    return value
