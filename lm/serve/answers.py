"""Answers of the API: replies with their tokens, as whole objects and as events of a stream."""

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

LOG_ZERO = -9999.0  # the API's number for log 0


@dataclass(frozen=True, slots=True)
class Token:
    """A generated token: its name, the text that it appends, and its log-probability (nats) if wanted.

    ``top`` has the most probable tokens with theirs.
    """

    name: str
    text: str
    log_prob: float | None = None
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """A reply, whose text is the joined texts of its tokens."""

    tokens: tuple[Token, ...]
    finished: bool

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        return "stop" if self.finished else "length"

    def until(self, stops: Sequence[str]) -> "Choice":
        """The reply up to the first of ``stops``, without the tokens behind it."""
        text = self.text
        found = [place for stop in stops if (place := text.find(stop)) >= 0]
        if not found:
            return self
        left, kept = min(found), list[Token]()
        for token in self.tokens:
            if left <= 0:
                break
            kept.append(Token(token.name, token.text[:left], token.log_prob, token.top))
            left -= len(token.text)
        return Choice(tuple(kept), finished=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """The replies to one request. ``read`` is the number of tokens that the model has read.

    ``indices`` are the numbers of the replies in the answer; () counts them from 0.
    """

    choices: tuple[Choice, ...]
    read: int
    indices: tuple[int, ...] = ()

    @classmethod
    def joined(cls, parts: Sequence["Answer"], each: int) -> "Answer":
        """The answer to several prompts with up to ``each`` replies: reply i to prompt p is p · each + i."""
        numbered = [
            (prompt * each + place, choice)
            for prompt, part in enumerate(parts)
            for place, choice in enumerate(part.choices)
        ]
        indices, choices = zip(*numbered, strict=True) if numbered else ((), ())
        return cls(tuple(choices), sum(part.read for part in parts), tuple(indices))

    @property
    def numbered(self) -> Iterator[tuple[int, Choice]]:
        """The replies with their numbers."""
        return zip(self.indices or range(len(self.choices)), self.choices, strict=True)

    @property
    def written(self) -> int:
        return sum(len(choice.tokens) for choice in self.choices)

    def usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.read,
            "completion_tokens": self.written,
            "total_tokens": self.read + self.written,
        }


@dataclass(frozen=True, slots=True)
class Form:
    """The form of answers of one endpoint, for one request."""

    chat: bool
    model: str
    fingerprint: str
    listed: int | None  # most probable tokens at each step; None = no probabilities

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The answer as one object."""
        choices = [self._choice(number, choice) for number, choice in answer.numbered]
        return {**self._envelope(""), "choices": choices, "usage": answer.usage()}

    def events(self, answer: Answer, *, usage: bool) -> Iterator[str]:
        """The answer as server-sent events: one for each token, in the order of the replies."""
        envelope = self._envelope(".chunk")
        for number, choice in answer.numbered:
            if self.chat:
                yield _event(envelope, [self._delta(number, {"role": "assistant", "content": ""}, None)])
            at = 0
            for token in choice.tokens:
                part = Choice((token,), finished=choice.finished)
                yield _event(envelope, [self._piece(number, part, at)])
                at += len(token.text)
            yield _event(envelope, [self._end(number, choice)])
        if usage:
            yield _event(envelope | {"usage": answer.usage()}, [])
        yield "data: [DONE]\n\n"

    def _envelope(self, suffix: str) -> dict[str, Any]:
        kind = f"chat.completion{suffix}" if self.chat else "text_completion"
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _choice(self, number: int, choice: Choice) -> dict[str, Any]:
        end = {"index": number, "finish_reason": choice.finish_reason, "logprobs": self._log_probs(choice)}
        if not self.chat:
            return {**end, "text": choice.text}
        return {**end, "message": {"role": "assistant", "content": choice.text, "refusal": None}}

    def _piece(self, number: int, part: Choice, at: int) -> dict[str, Any]:
        log_probs = self._log_probs(part, at)
        if self.chat:
            return self._delta(number, {"content": part.text}, log_probs)
        return {"index": number, "text": part.text, "logprobs": log_probs, "finish_reason": None}

    def _end(self, number: int, choice: Choice) -> dict[str, Any]:
        content: dict[str, Any] = {"delta": {}} if self.chat else {"text": ""}
        return {"index": number, **content, "logprobs": None, "finish_reason": choice.finish_reason}

    def _delta(self, number: int, delta: dict[str, Any], log_probs: Any) -> dict[str, Any]:
        return {"index": number, "delta": delta, "logprobs": log_probs, "finish_reason": None}

    def _log_probs(self, choice: Choice, at: int = 0) -> dict[str, Any] | None:
        if self.listed is None:
            return None
        if self.chat:
            return {"content": [_chat_token(token) for token in choice.tokens], "refusal": None}
        offsets = [at]
        for token in choice.tokens:
            offsets.append(offsets[-1] + len(token.text))
        return {
            "tokens": [token.name for token in choice.tokens],
            "token_logprobs": [_number(token.log_prob) for token in choice.tokens],
            "top_logprobs": [{name: _number(one) for name, one in token.top} for token in choice.tokens],
            "text_offset": offsets[:-1],
        }


def _chat_token(token: Token) -> dict[str, Any]:
    top = [_named(name, None, log_prob) for name, log_prob in token.top]
    return {**_named(token.name, token.text, token.log_prob), "top_logprobs": top}


def _named(name: str, text: str | None, log_prob: float | None) -> dict[str, Any]:
    """An entry of log-probabilities; a token that was not chosen has no text, which depends on its place."""
    content = None if text is None else list(text.encode("utf-8", "replace"))
    return {"token": name, "logprob": _number(log_prob), "bytes": content}


def _number(log_prob: float | None) -> float:
    return LOG_ZERO if log_prob is None else max(log_prob, LOG_ZERO)


def _event(envelope: dict[str, Any], choices: list[dict[str, Any]]) -> str:
    return f"data: {json.dumps({**envelope, 'choices': choices})}\n\n"
