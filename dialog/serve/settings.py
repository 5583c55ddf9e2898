"""Settings of decoding that a request asks for, and their limits."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from dialog.config import require_decode_read
from dialog.decoding.config import GREEDY, ONE_BEAM, ONE_GROUP, DecodeConfig
from lm.errors import ConfigError, encodable
from lm.serve.failure import ApiError, wrong_value
from lm.serve.protocol import (
    COLDEST,
    MAX_BEAMS,
    MAX_TOKENS,
    ChatRequest,
    CompletionRequest,
    Request,
    refused,
)
from lm.text.vocabulary import Codec

LIMITS = {"beam": MAX_BEAMS, "nbest": MAX_BEAMS, "candidates": MAX_BEAMS}
PHRASES, PHRASE_TOKENS = 16, 64  # of begin, require and forbid in a request


def decoding(request: Request, usual: DecodeConfig, longest: int = MAX_TOKENS) -> DecodeConfig:
    """The settings of a request: those of the run, with the parameters that it gives.

    A temperature or top_p samples, and the temperature 0 is greedy. Further settings are in ``decode``, by
    the names that ``--set`` has. ApiError for impossible ones, for those without effect, and for those beyond
    the limits of the server. ``longest`` is the most tokens of a reply for which a model has room.
    """
    given: dict[str, Any] = {}
    if request.temperature == 0:
        if request.decode.get("method", "beam") != "beam":
            raise wrong_value("temperature", "0 is greedy search; leave it or decode.method out")
        own = {"beam", *(GREEDY.keys() - ONE_BEAM.keys())} & request.decode.keys()
        given |= ONE_BEAM if own else GREEDY
        if "groups" in request.decode:
            given = {name: value for name, value in given.items() if name not in ONE_GROUP}
    elif request.temperature is not None or _narrows(request.top_p, usual):
        given |= {"method": "sample", **ONE_GROUP}
        given |= {
            name: value
            for name, value in (("temperature", request.temperature), ("top_p", request.top_p))
            if value is not None
        }
    if request.seed is not None:
        given["seed"] = request.seed
    if isinstance(request, ChatRequest | CompletionRequest) and request.limit is not None:
        given["max_length"] = min(request.limit, longest)
        given["min_length"] = min(usual.min_length, given["max_length"])
    given |= _fitting(request.decode, usual)
    _require_replies(request)
    settings = usual.model_dump() | _enough(request, usual) | given | request.decode
    try:
        decode = DecodeConfig.model_validate(settings)
    except ValidationError as error:
        raise refused(error, DecodeConfig, "decode") from None
    _require_effect(request, usual, decode)
    if decode.mmi_run not in ("", usual.mmi_run):
        raise wrong_value("decode.mmi_run", "only the server names folders")
    for name, most in (LIMITS | {"max_length": longest}).items():
        if getattr(decode, name) > max(most, getattr(usual, name)):
            raise wrong_value(f"decode.{name}", f"must be at most {most:,} here")
    if decode.temperature < min(COLDEST, usual.temperature):
        raise wrong_value("decode.temperature", f"must be at least {COLDEST} here")
    return decode


def _require_effect(request: Request, usual: DecodeConfig, decode: DecodeConfig) -> None:
    """Raise ApiError for a setting without effect. The API's ``seed`` may come with every request."""
    for name in ("temperature", "top_p", *request.decode):
        param = f"decode.{name}" if name in request.decode else name
        try:
            require_decode_read(usual, decode, f"decode.{name}", "")
        except ConfigError as error:
            raise ApiError(400, str(error), param=param, code="invalid_value") from None


def _narrows(top_p: float | None, usual: DecodeConfig) -> bool:
    """True if ``top_p`` changes decoding: below 1 it samples, and 1 is a setting of sampling."""
    return top_p is not None and (top_p < 1 or usual.method == "sample")


def _fitting(decode: Mapping[str, Any], usual: DecodeConfig) -> dict[str, Any]:
    """Settings that give way to those of ``decode``: groups of beams, and the least length."""
    given: dict[str, Any] = {}
    beam, longest = decode.get("beam"), decode.get("max_length")
    uneven = type(beam) is int and "groups" not in decode and beam % usual.groups
    if decode.get("method") == "sample" or uneven:
        given |= ONE_GROUP
    if type(longest) is int:
        given["min_length"] = min(usual.min_length, longest)
    return given


def _require_replies(request: Request) -> None:
    """Raise ApiError if a request wants more replies than its own settings keep."""
    for name in ("nbest", "candidates"):
        given = request.decode.get(name)
        if type(given) is int and 0 < given < request.n:
            problem = f"{request.n} replies, but decode.{name} = {given}; lower n, or raise decode.{name}"
            raise wrong_value("n", problem)


def _enough(request: Request, usual: DecodeConfig) -> dict[str, int]:
    """The run's numbers of responses and candidates, raised to the replies that a request wants."""
    nbest = max(request.n, usual.nbest)
    return {"nbest": nbest, "candidates": max(usual.candidates, nbest) if usual.candidates else 0}


def require_short_phrases(decode: DecodeConfig, usual: DecodeConfig, codec: Codec) -> None:
    """Raise ApiError for many or long phrases, or lone surrogates. Those of the run itself have no limit."""
    for name in ("begin", "require", "forbid"):
        given = getattr(decode, name)
        if given == getattr(usual, name):
            continue
        phrases = [given] if isinstance(given, str) else given
        if not all(map(encodable, phrases)):
            raise wrong_value(f"decode.{name}", "must be text that can be encoded in UTF-8")
        if len(phrases) > PHRASES:
            raise wrong_value(f"decode.{name}", f"must have at most {PHRASES} phrases here")
        if any(len(codec.encode(one)) > PHRASE_TOKENS for one in phrases):
            raise wrong_value(f"decode.{name}", f"a phrase must have at most {PHRASE_TOKENS} tokens here")
