"""Requests of the API: schemas, limits, and parameters that are known but not supported.

A parameter that is null counts as absent. A parameter that this server does not support is refused, except
with the value that has no effect.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NoReturn, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from lm.config.mistakes import in_our_words
from lm.config.section import MAX_SEED
from lm.config.suggest import did_you_mean
from lm.serve.failure import ApiError, quoted

MAX_BODY = 256 << 10  # bytes of a request
MAX_MESSAGES = 1000
MAX_CHARACTERS = 20_000  # of one text
MAX_CHOICES = 20
MAX_TOKENS = 500  # of a reply
MAX_BEAMS = 50
MAX_STOPS = 4
COLDEST = 0.01  # temperature; logits divided by less may overflow
MAX_PROMPTS = 20
MAX_TOP = 20  # most probable tokens listed at a step
NEUTRAL: Mapping[str, tuple[object, ...]] = {  # parameters that are not supported, with harmless values
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "metadata": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_cache_key": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
_Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
RequestT = TypeVar("RequestT", bound="Request")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(_Strict):
    """Options of a stream: whether a last event counts the tokens."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class Request(_Strict):
    """Parameters that chats and completions share. None = the run's own setting."""

    model: Annotated[str, Field(max_length=1000)]
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None  # more than MAX_TOKENS count as these
    stop: tuple[Annotated[str, Field(min_length=1, max_length=100)], ...] = Field((), max_length=MAX_STOPS)
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=1000)] | None = None  # has no effect
    decode: dict[str, Any] = {}  # our own: settings of decoding by the names that --set has

    @field_validator("stop", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.temperature and self.temperature < COLDEST:
            raise ValueError(f"temperature: must be 0, which is greedy, or at least {COLDEST}")
        if self.stream_options and not self.stream:
            raise ValueError("stream_options: belongs to stream = true")
        return self


class TextPart(_Strict):
    """A part of a message; only text is supported."""

    type: Literal["text"]
    text: _Text


class ChatMessage(_Strict):
    """An utterance: ``user`` is the human, ``assistant`` the model. Other roles instruct."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[list[TextPart], Field(max_length=MAX_MESSAGES)]
    name: Annotated[str, Field(max_length=1000)] | None = None  # has no effect
    tool_calls: Annotated[list[Any], Field(max_length=0)] = []
    annotations: Annotated[list[Any], Field(max_length=0)] = []

    @field_validator("content", mode="before")
    @classmethod
    def _parts(cls, value: object) -> object:
        return [{"type": "text", "text": value}] if isinstance(value, str) else value

    @property
    def text(self) -> str:
        return " ".join(part.text for part in self.content)


class ChatRequest(Request):
    """Body of ``/v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None

    @field_validator("messages")
    @classmethod
    def _said(cls, messages: list[ChatMessage]) -> list[ChatMessage]:
        """The utterances, without instructions, which corpora lack, too."""
        said = [message for message in messages if message.role in ("user", "assistant")]
        if not said:
            raise ValueError("needs a message of the user")
        return said

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: belongs to logprobs = true")
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise ValueError("max_tokens: means the same as max_completion_tokens; leave one out")
        return self

    @property
    def limit(self) -> int | None:
        """The maximum number of tokens of a reply."""
        return _at_most(self.max_tokens or self.max_completion_tokens)

    @property
    def listed(self) -> int | None:
        """The number of most probable tokens at each step. None = no probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class InspectRequest(ChatRequest):
    """Body of ``/v1/chat/inspect``: that of a chat, and the reply to look into."""

    choice: Annotated[int, Field(ge=0, lt=MAX_BEAMS)] = 0
    top: Annotated[int, Field(ge=1, le=MAX_TOP)] = 10


class CompletionRequest(Request):
    """Body of ``/v1/completions``."""

    prompt: Annotated[list[_Text], Field(min_length=1, max_length=MAX_PROMPTS)] = [""]
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompts(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _few(self) -> Self:
        if self.n * len(self.prompt) > MAX_CHOICES:
            raise ValueError(f"n: at most {MAX_CHOICES} texts are written at once; lower n")
        return self

    @property
    def limit(self) -> int | None:
        """The maximum number of tokens of a text."""
        return _at_most(self.max_tokens)

    @property
    def listed(self) -> int | None:
        """The number of most probable tokens at each step. None = no probabilities."""
        return self.logprobs


def _at_most(tokens: int | None) -> int | None:
    return tokens and min(tokens, MAX_TOKENS)


def parsed(body: bytes, schema: type[RequestT]) -> RequestT:
    """The request in a body. ApiError if it is not JSON, or not of the schema."""
    try:
        given = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not JSON") from None
    if not isinstance(given, dict):
        raise ApiError(400, "the body is not a JSON object")
    try:
        return schema.model_validate(_present(given, schema))
    except ValidationError as error:
        raise refused(error, schema) from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


def _present(given: Mapping[str, Any], schema: type[Request]) -> dict[str, Any]:
    """Parameters that have an effect. ApiError for one that is not supported."""
    kept = {}
    for name, value in given.items():
        if name in schema.model_fields:
            if value is not None:
                kept[name] = _without_nulls(value)
        elif name not in NEUTRAL:
            raise _unknown(name, name, schema)
        elif value is not None and not any(_same(value, harmless) for harmless in NEUTRAL[name]):
            raise ApiError(
                400, f"{name} is not supported; leave it out", param=name, code="unsupported_parameter"
            )
    messages = kept.get("messages")
    if isinstance(messages, list):
        kept["messages"] = [_without_nulls(message) for message in messages]
    return kept


def _same(value: object, other: object) -> bool:
    """Equality in which true is not 1, except that 0 is 0.0."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _without_nulls(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {name: part for name, part in value.items() if part is not None}


def _unknown(path: str, name: str, schema: type[BaseModel] | None) -> ApiError:
    """The error object of a key that a schema lacks, with the key that is probably meant, or all keys."""
    keys = schema.model_fields if schema else {}
    hint = did_you_mean(name, keys) or (f"; choose from {', '.join(keys)}" if keys else "")
    return ApiError(
        400, f"{quoted(path)}: unknown parameter{hint}", param=quoted(path), code="unknown_parameter"
    )


def refused(error: ValidationError, schema: type[BaseModel], under: str = "") -> ApiError:
    """The error object of what a schema refuses. ``under`` is the parameter that holds its keys."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = under
    for part in first["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    if first["type"] == "extra_forbidden":
        *outer, name = first["loc"]
        return _unknown(path, str(name), None if outer else schema)
    message = in_our_words(first["msg"].removeprefix("Value error, "))
    if first["type"] == "too_short":  # of lists, only empty ones
        message = f"needs at least one {path.removesuffix('s')}"
    if not path:  # of the whole request; these messages begin with the parameter
        path, _, _ = message.partition(":")
    else:
        message = f"{quoted(path)}: {message}"
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
    return ApiError(400, quoted(message, 400), param=quoted(path), code=code)
