"""A conversation with a trained model: lines of text and commands in, lines to show out; no terminal."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pydantic import ValidationError

from dialog.corpus import Dialog, Utterance
from dialog.schema import DecodeConfig, DialogConfig
from dialog.transcript import HUMAN, MODEL, Alternative, Turn, write_transcript
from lm.errors import ConfigError, HighrankError, Interrupted
from lm.stop import Poll, no_poll
from lm.suggest import did_you_mean
from lm.terminal import sanitize
from lm.text import Codec

if TYPE_CHECKING:
    from dialog.batches import Example
    from dialog.beam import Hypothesis
    from dialog.trained import StepProbabilities

MOST = 1000  # beams, responses and tokens asked for; more would only exhaust the memory

SAMPLING = {"T": "temperature", "top_k": "top_k", "top_p": "top_p", "on": "temperature_on"}


class Responder(Protocol):
    """What a conversation needs of a :class:`dialog.trained.TrainedModel`."""

    @property
    def config(self) -> DialogConfig: ...

    @property
    def codec(self) -> Codec: ...

    def respond(
        self, examples: "Sequence[Example]", decode: DecodeConfig, poll: Poll
    ) -> "list[list[Hypothesis]]": ...

    def token_probabilities(
        self, example: "Example", tokens: Sequence[int], top: int
    ) -> "list[StepProbabilities]": ...


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the human said, the hypotheses it led to, best first, and their texts; the first is the reply."""

    said: Utterance
    example: "Example"
    hypotheses: "tuple[Hypothesis, ...]"
    texts: tuple[str, ...]
    decode: DecodeConfig

    @property
    def reply(self) -> Utterance:
        return Utterance(MODEL, self.texts[0] if self.texts else "")

    def turn(self) -> Turn:
        """What is saved of it."""
        alternatives = tuple(
            Alternative(text=text, log_prob=found.log_prob, score=found.score, finished=found.finished)
            for found, text in zip(self.hypotheses, self.texts, strict=True)
        )
        return Turn(self.said.text, self.reply.text, alternatives, self.decode, None)


class Conversation:
    """The state of one chat. Feed it lines; it never raises for what a line says, and prints nothing.

    The human is speaker A and the model B. The model hears what ``list_examples`` would give it for the
    response in a corpus, so the same conversation gets the same reply as from ``dialog evaluate``.
    """

    def __init__(self, model: Responder, decode: DecodeConfig | None = None) -> None:
        self.model = model
        self.decode = decode or model.config.decode
        self.shown = 0  # how many hypotheses are listed with scores; 0 shows the reply alone
        self.ended = False
        self.exchanges: list[Exchange] = []

    def feed(self, line: str, poll: Poll = no_poll) -> list[str]:
        """The lines that answer ``line``, safe to show, none of them with a line break.

        ``poll`` is called while a reply is made and may raise Interrupted, which leaves the conversation as
        it was.
        """
        text = _one_line(line)
        try:
            lines = self._command(text) if text.startswith("/") else self._say(text, poll)
        except Interrupted:
            lines = ["(stopped)"]
        except HighrankError as error:
            lines = [str(error)]
        return [_one_line(line, strip=False) for line in lines]

    def _say(self, text: str, poll: Poll) -> list[str]:
        if not text:
            return []
        said = Utterance(HUMAN, text)
        example = self._example(said)
        (found,) = self.model.respond([example], self.decode, poll)
        texts = tuple(_one_line(self.model.codec.decode(hypothesis.tokens)) for hypothesis in found)
        self.exchanges.append(Exchange(said, example, tuple(found), texts, self.decode))
        if not self.shown:
            return [texts[0] or "(says nothing)"] if texts else ["(no reply)"]
        return [
            f"{number}. {found.score:9.3f}  {text or '(says nothing)'}{'' if found.finished else ' …'}"
            for number, (found, text) in enumerate(zip(found[: self.shown], texts, strict=False), start=1)
        ] or ["(no reply)"]

    def _example(self, said: Utterance) -> "Example":
        """The example whose response comes next, as a corpus with this conversation in it would list it."""
        from dialog.batches import list_examples

        context = self.model.config.data.context
        before = [u for exchange in self.exchanges[-context:] for u in (exchange.said, exchange.reply)]
        expected = Utterance(MODEL, "")
        dialog = Dialog("chat", "", (*before, said, expected, expected))  # the last is never a response
        return list_examples([dialog], context)[-1]

    def _command(self, text: str) -> list[str]:
        name, _, rest = text[1:].partition(" ")
        name = name.lower()
        if name not in COMMANDS:
            hint = did_you_mean(f"/{name[:40]}", [f"/{known}" for known in COMMANDS])
            return [f"unknown command /{name[:40]}{hint or ';'} /help lists them"]
        if name == "save":
            return COMMANDS[name].run(self, [rest.strip()] if rest.strip() else [])
        return COMMANDS[name].run(self, rest.split())

    def _set(self, command: str, values: dict[str, object]) -> None:
        try:
            self.decode = DecodeConfig.model_validate(self.decode.model_dump() | values)
        except ValidationError as error:
            problem = error.errors()[0]
            expected = problem["msg"][:1].lower() + problem["msg"][1:]
            raise ConfigError(f"/{command}: {problem['loc'][0]}: {expected}; {_usage(command)}") from None

    def _help(self, arguments: list[str]) -> list[str]:
        _expect("help", not arguments)
        width = max(len(command.usage) for command in COMMANDS.values())
        return [f"{command.usage:{width}}  {command.about}" for command in COMMANDS.values()]

    def _reset(self, arguments: list[str]) -> list[str]:
        _expect("reset", not arguments)
        self.exchanges.clear()
        return ["(a new conversation)"]

    def _undo(self, arguments: list[str]) -> list[str]:
        _expect("undo", not arguments)
        if not self.exchanges:
            return ["(nothing to take back)"]
        return [f"(took back: {self.exchanges.pop().said.text})"]

    def _nbest(self, arguments: list[str]) -> list[str]:
        count = _whole("nbest", arguments, 1)
        self._set("nbest", {"nbest": count})
        self.shown = count
        return [f"(the {count} best)" if count > 1 else "(the best)"]

    def _beam(self, arguments: list[str]) -> list[str]:
        self._set("beam", {"method": "beam", "beam": _whole("beam", arguments, 1)})
        return self._settings()

    def _greedy(self, arguments: list[str]) -> list[str]:
        _expect("greedy", not arguments)
        self._set("greedy", {"method": "beam", "beam": 1})
        return self._settings()

    def _sample(self, arguments: list[str]) -> list[str]:
        values: dict[str, object] = {"method": "sample"}
        for argument in arguments:
            name, _, value = argument.partition("=")
            key = SAMPLING.get(name, name)
            _expect("sample", key in SAMPLING.values() and bool(value))
            values[key] = value if key == "temperature_on" else _number("sample", value, whole=key == "top_k")
        self._set("sample", values)
        return self._settings()

    def _seed(self, arguments: list[str]) -> list[str]:
        self._set("seed", {"seed": _whole("seed", arguments, 0, 2**63 - 1)})
        return self._settings()

    def _settings(self) -> list[str]:
        decode = self.decode
        if decode.method == "beam":
            return ["(greedy)" if decode.beam == 1 else f"(beam search, {decode.beam} beams)"]
        return [
            f"(sampling: T={decode.temperature:g} on={decode.temperature_on} top_k={decode.top_k} "
            f"top_p={decode.top_p:g} seed={decode.seed}, most probable of {decode.nbest})"
        ]

    def _probs(self, arguments: list[str]) -> list[str]:
        count = _whole("probs", arguments, 1) if arguments else 5
        if not self.exchanges or not self.exchanges[-1].hypotheses:
            return ["(no reply to look into yet)"]
        last = self.exchanges[-1]
        best = last.hypotheses[0]
        steps = self.model.token_probabilities(last.example, best.tokens, count)
        lines = []
        for step in steps if best.finished else steps[:-1]:
            prior = f"   prior {_row(step.prior, ' ')}" if len(step.prior) > 1 else ""
            lines.append(f"{step.token}  {step.prob:.4f}{prior}")
            for token, prob, shares in step.top:
                lines.append(
                    f"    {prob:.4f}  {token}" + (f"  = {_row(shares, ' + ')}" if len(shares) > 1 else "")
                )
        return lines

    def _show(self, arguments: list[str]) -> list[str]:
        _expect("show", not arguments)
        heard = self._example(Utterance(HUMAN, "")).context[:-1]
        return self._settings() + [f"{u.speaker or ' '}  {u.text}" for u in heard]

    def _save(self, arguments: list[str]) -> list[str]:
        _expect("save", bool(arguments))
        if not self.exchanges:
            return ["(nothing to save yet)"]
        path = Path(os.path.expanduser(arguments[0]))
        count = write_transcript(path, [exchange.turn() for exchange in self.exchanges])
        return [f"(saved {count} utterances to {path})"]

    def _quit(self, arguments: list[str]) -> list[str]:
        _expect("quit", not arguments)
        self.ended = True
        return []


@dataclass(frozen=True, slots=True)
class Command:
    """How a command is typed, what it does, and the method that does it, given its arguments."""

    usage: str
    about: str
    run: Callable[[Conversation, list[str]], list[str]]


COMMANDS = {
    "help": Command("/help", "this list", Conversation._help),
    "reset": Command("/reset", "begin a new conversation", Conversation._reset),
    "undo": Command("/undo", "take back the last line and its reply", Conversation._undo),
    "nbest": Command(
        "/nbest N", "list the N best replies with scores; the first is said", Conversation._nbest
    ),
    "beam": Command("/beam N", "beam search with N beams", Conversation._beam),
    "greedy": Command("/greedy", "the most probable token at every step", Conversation._greedy),
    "sample": Command(
        "/sample [T=0.8] [top_k=40] [top_p=0.9] [on=mixture|components]",
        "sample replies",
        Conversation._sample,
    ),
    "seed": Command("/seed N", "same conversation, same seed: same sample", Conversation._seed),
    "probs": Command(
        "/probs [N]",
        "the N likeliest tokens at each step of the last reply, by component",
        Conversation._probs,
    ),
    "show": Command("/show", "the settings, and what the model still hears", Conversation._show),
    "save": Command(
        "/save FILE", "write the conversation as JSON lines, a corpus of turns", Conversation._save
    ),
    "quit": Command("/quit", "leave", Conversation._quit),
}


def _one_line(text: str, *, strip: bool = True) -> str:
    text = sanitize(text).replace("\n", " ")
    return text.strip() if strip else text


def _row(values: Sequence[float], between: str) -> str:
    return between.join(f"{value:.4f}" for value in values)


def _usage(command: str) -> str:
    return f"use {COMMANDS[command].usage}"


def _expect(command: str, right: bool) -> None:
    if not right:
        raise ConfigError(_usage(command))


def _whole(command: str, arguments: list[str], least: int, most: int = MOST) -> int:
    _expect(command, len(arguments) == 1)
    value = _number(command, arguments[0], whole=True)
    if not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"/{command}: expected a whole number from {least} to {most}")
    return value


def _number(command: str, text: str, *, whole: bool) -> float:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        kind = "whole number" if whole else "number"
        raise ConfigError(f"/{command}: expected a {kind}, got {text[:40]}; {_usage(command)}") from None
