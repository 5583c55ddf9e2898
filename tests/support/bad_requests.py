"""Malformed requests: valid ones with random damage to values, keys, bytes, headers, paths and methods."""

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "tiny",
        "messages": [{"role": "user", "content": "well"}, {"role": "assistant", "content": "oh"}],
        "n": 2, "seed": 3, "temperature": 0.7, "top_p": 0.9, "max_tokens": 3, "stop": ["x"], "stream": True,
        "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2, "user": "me",
        "decode": {
            "nbest": 2, "no_repeat_ngram": 2, "forbid": ["yeah"], "temperature_on": "components",
            "select": "mbr", "mmi_run": "", "begin": "well", "require": ["oh"],
        },
    },
    "/v1/chat/inspect": {
        "model": "tiny", "messages": [{"role": "user", "content": [{"type": "text", "text": "well"}]}],
        "choice": 1, "top": 3,
    },
    "/v1/completions": {
        "model": "tiny", "prompt": ["well", "oh\nyeah"], "max_tokens": 3, "logprobs": 1, "seed": 1, "n": 2,
        "echo": False,
    },
}  # fmt: skip
ODD: list[Any] = [
    None, True, False, 0, -1, 1,
    2**31, 2**63, -(2**70), 10**400, 1e308, 1e-300, 0.0, -0.5, "", " ", "\0", "\x1b[2J",
    "\ud800", "\u202e", "<s>", "</s>", "<d>", "<unk>", "<pad>", "a" * 30_000, "é" * 999,
    "well\r\nSet-Cookie: a=b",
    "../../etc/passwd", "{}", "%s%n", "${x}", [], [[]], {}, {"": ""}, [None], [1, "a", {}], {"a": {"b": []}},
    ["\n"] * 30, "beam", "sample", "system", {"type": "image_url"}, "__proto__", "NaN",
]  # fmt: skip
PATHS = [
    "/",
    "/../../etc/passwd",
    "/%00",
    "/v1",
    "/v1/models/%00",
    "//",
    "/v1/models/" + "a" * 5000,
    "/page/../index.html",
    "/style.css/",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/v1/chat/completions/",
    "/metrics?x=%1b",
]
METHODS = ["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "PATCH", "FOO"]


@dataclass(frozen=True)
class BadRequest:
    """One request."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def bad_requests(count: int, seed: int) -> Iterator[BadRequest]:
    """Yield as many requests; the same seed gives the same ones."""
    source = random.Random(seed)
    for _ in range(count):
        path = source.choice([*VALID])
        body = copy.deepcopy(VALID[path])
        for _ in range(source.choice((1, 1, 1, 2, 3, 8))):
            damage(body, source)
        data = json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        method = "POST"
        match source.randrange(12):
            case 0:
                data = bytes(source.randrange(256) for _ in range(source.randrange(200)))
            case 1 | 2:
                data = bitten(data, source)
            case 3:
                data = data[: source.randrange(len(data))]
            case 4:
                data = source.choice(
                    ["[" * 50_000, '{"a":' * 20_000, '"' * 999, "NaN", "1e999", "\ufeff{}"]
                ).encode()
            case 5:
                method, path = source.choice(METHODS), source.choice([*PATHS, *VALID])
            case 6:
                headers["content-type"] = source.choice(
                    ["", "text/plain", "application/json; charset=utf-7", "a/b/c;;"]
                )
            case 7:
                headers["host"] = source.choice(
                    ["", "evil", "localhost:99999999", "[::1", "]", "localhost\t", ":" * 50]
                )
        yield BadRequest(method, path, data, headers)


def damage(body: Any, source: random.Random) -> None:
    """Replace, remove, rename, repeat or nest a value at a random place."""
    while True:
        keys = list(body) if isinstance(body, dict) else list(range(len(body)))
        if not keys:
            return
        key = source.choice(keys)
        if isinstance(body[key], dict | list) and source.random() < 0.6:
            body = body[key]
            continue
        break
    match source.randrange(6):
        case 0 | 1 | 2:
            body[key] = copy.deepcopy(source.choice(ODD))
        case 3:
            del body[key]
        case 4 if isinstance(body, dict):
            body[source.choice([*"ab", "tools", "best_of", "suffix", "\x1b[31m", "n", "\u202e"])] = (
                source.choice(ODD)
            )
        case _:
            body[key] = [body[key]] * source.choice((1, 2, 50))


def bitten(data: bytes, source: random.Random) -> bytes:
    """Bytes with some of them changed."""
    changed = bytearray(data)
    for _ in range(source.randint(1, 6)):
        changed[source.randrange(len(changed))] = source.randrange(256)
    return bytes(changed)
