"""The gate before the application: hosts, keys, bodies, headers of answers, the log and the counts."""

import asyncio
import hmac
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lm.ending import free_frames
from lm.serve.failure import ApiError, quoted
from lm.serve.metrics import Metrics
from lm.serve.protocol import MAX_BODY

PAGE_FILES = {"/": ("index.html", "text/html"), "/style.css": ("style.css", "text/css")}
PAGE_FILES |= {f"/{name}.js": (f"{name}.js", "text/javascript") for name in ("page", "inspector")}
OPEN = frozenset({*PAGE_FILES, "/healthz"})  # without a key
ENDPOINTS = OPEN | {
    "/metrics", "/v1/models", "/v1/chat/completions", "/v1/chat/inspect", "/v1/completions",
}  # fmt: skip
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
BODY_SECONDS = 20.0  # in which a body must arrive
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Policy:
    """The hosts and keys of which a request must have one.

    Args:
        keys: API keys; none = no key is wanted.
        hosts: names in the Host header; None = any. The names of the loopback address keep
            out web pages that point a name of their own at it.
    """

    keys: Sequence[str] = ()
    hosts: frozenset[str] | None = None

    def check(self, path: str, method: str, headers: Headers) -> None:
        """Raise ApiError for a request that may not be answered."""
        name = headers.get("host", "").rpartition("]")
        host = name[0] + name[1] or name[2].partition(":")[0]
        if self.hosts is not None and host.lower() not in self.hosts:
            raise ApiError(403, "this name of the server is not served; use localhost")
        if self.keys and path not in OPEN and not self._knows(headers.get("authorization", "")):
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and kind != "application/json":
            raise ApiError(415, "the content type must be application/json")

    def _knows(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        known = False
        for key in self.keys:  # all of them, so that the time does not depend on the key
            known |= hmac.compare_digest(key.encode(), given.strip().encode())
        return known and scheme.lower() == "bearer"


class Gatekeeper:
    """ASGI middleware around the application.

    It checks requests, adds security headers, counts and logs. Nothing that a client sends is logged, except
    through :func:`quoted`.
    """

    def __init__(self, app: ASGIApp, policy: Policy, metrics: Metrics, log: Callable[[str], None]) -> None:
        self._app, self._policy, self._metrics, self._log = app, policy, metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, start = 0, time.perf_counter()

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            self._policy.check(scope["path"], scope["method"], Headers(scope=scope))
            await self._app(scope, receive, answer)
        except ApiError as error:
            await JSONResponse(error.body(), status_code=error.status)(scope, receive, answer)
        except Exception as error:
            self._log(f"internal error: {_described(error)}")
            free_frames(error)
        finally:
            self._count(scope, status, time.perf_counter() - start)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        path = "/v1/models" if scope["path"].startswith("/v1/models/") else scope["path"]
        endpoint = path if path in ENDPOINTS else "other"
        method = scope["method"] if scope["method"] in METHODS else "OTHER"
        self._metrics.answered(endpoint, status, seconds)
        self._log(f"{method} {endpoint} {status} {seconds * 1000:.0f} ms")


async def read_body(http: HttpRequest) -> bytes:
    """The body of a request. ApiError if it is too large, too slow, or ends early."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in http.stream():
                size += len(part)
                if size > MAX_BODY:
                    raise ApiError(413, f"the body has more than {MAX_BODY:,} bytes")
                parts.append(part)
    except TimeoutError:
        raise ApiError(408, "the body came too slowly") from None
    except ClientDisconnect:
        raise ApiError(499, "the client has left") from None
    return b"".join(parts)


def _described(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return quoted(f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {error}", 400)
