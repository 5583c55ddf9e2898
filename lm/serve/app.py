"""The application: endpoints of the API, and the page."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lm.ending import shortage
from lm.errors import ConfigError, DataError, DivergenceError
from lm.serve.answers import Answer, Form
from lm.serve.batching import Batcher, Job
from lm.serve.failure import ApiError, quoted
from lm.serve.gate import PAGE_FILES, Gatekeeper, Policy, read_body
from lm.serve.metrics import CONTENT_TYPE, Metrics
from lm.serve.protocol import ChatRequest, CompletionRequest, InspectRequest, RequestT, parsed

TOGETHER, WAITING = 32, 128  # jobs that are decoded together, and that may wait
LAST_SECONDS = 5.0  # that a batch may take after all of its clients have gone at the end


class Served(Protocol):
    """A run that answers requests. Its methods raise ApiError for what it does not support."""

    @property
    def created(self) -> int:
        """Unix time of the weights."""

    @property
    def fingerprint(self) -> str:
        """Hash of the weights."""

    @property
    def about(self) -> Mapping[str, Any]:
        """Facts for ``/v1/models`` and the page."""

    def chat_job(self, request: ChatRequest) -> Job:
        """A job whose result is an :class:`Answer`."""

    def inspect_job(self, request: InspectRequest) -> Job:
        """A job whose result is a JSON object."""

    def completion_jobs(self, request: CompletionRequest) -> Sequence[Job]:
        """A job for every prompt, whose results are :class:`Answer`."""


class Server:
    """Endpoints over runs by the name that requests have as ``model``.

    ``page``: whether ``/`` is the page of conversations. ``log`` is called with a line for every request.
    """

    def __init__(
        self,
        runs: Mapping[str, Served],
        policy: Policy,
        *,
        page: bool = True,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.runs, self.page, self._log = runs, page, log
        self.metrics = Metrics(lambda: self.batcher.waiting)
        self.batcher = Batcher(TOGETHER, WAITING, self.metrics.ran)
        handlers: dict[Any, Any] = {
            HTTPException: _refuse, ApiError: _refuse, ConfigError: _unfit, DataError: _unfit,
            Exception: _broken,
        }  # fmt: skip
        app = Starlette(routes=self._routes(), exception_handlers=handlers, lifespan=self._lifespan)
        app.router.redirect_slashes = False  # a redirection would repeat the client's text
        self.app = Gatekeeper(app, policy, self.metrics, log)

    def _routes(self) -> list[Route]:
        posts = {
            "/v1/chat/completions": self._chat,
            "/v1/chat/inspect": self._inspect,
            "/v1/completions": self._complete,
        }
        gets: dict[str, Callable[[HttpRequest], Any]] = {
            "/v1/models": self._models,
            "/healthz": self._health,
            "/metrics": self._metrics,
        }
        if self.page:
            gets |= dict.fromkeys(PAGE_FILES, _file)
        return [
            *(Route(path, answer, methods=["POST"]) for path, answer in posts.items()),
            *(Route(path, answer, methods=["GET"]) for path, answer in gets.items()),
            Route("/v1/models/{name:path}", self._model, methods=["GET"]),
        ]

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        worker = asyncio.create_task(self.batcher.work())
        try:
            yield
        finally:
            self.batcher.close()
            await asyncio.wait([worker], timeout=LAST_SECONDS)
            if not worker.done():
                self._log("a batch does not end; its thread is left behind")
                worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker

    async def _chat(self, http: HttpRequest) -> Response:
        request = await _read(http, ChatRequest)
        run = self._run(request.model)
        answer = await self._result(http, run.chat_job(request))
        return self._answer(request, answer, run)

    async def _complete(self, http: HttpRequest) -> Response:
        request = await _read(http, CompletionRequest)
        run = self._run(request.model)
        parts = await self._results(http, run.completion_jobs(request))
        return self._answer(request, Answer.joined(parts, request.n), run)

    async def _inspect(self, http: HttpRequest) -> Response:
        request = await _read(http, InspectRequest)
        run = self._run(request.model)
        return JSONResponse(await self._result(http, run.inspect_job(request)))

    def _answer(self, request: ChatRequest | CompletionRequest, answer: Answer, run: Served) -> Response:
        form = Form(isinstance(request, ChatRequest), request.model, run.fingerprint, request.listed)
        self.metrics.tokens[request.model, "read"] += answer.read
        self.metrics.tokens[request.model, "written"] += answer.written
        if not request.stream:
            return JSONResponse(form.whole(answer))
        usage = request.stream_options is not None and request.stream_options.include_usage
        return StreamingResponse(_paced(form.events(answer, usage=usage)), media_type="text/event-stream")

    async def _results(self, http: HttpRequest, jobs: Sequence[Job]) -> list[Any]:
        """The results of jobs. A client that leaves cancels those that have not begun."""
        futures = self.batcher.submit(*jobs)
        leaving, begun = asyncio.create_task(_left(http)), set(futures)
        try:
            while begun:
                done, _ = await asyncio.wait((*begun, leaving), return_when=asyncio.FIRST_COMPLETED)
                begun -= done
                if begun and leaving in done:
                    self.metrics.left += 1
                    raise ApiError(499, "the client has left")
            return [future.result() for future in futures]
        finally:
            leaving.cancel()
            for future in futures:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # of one that nobody asks for

    async def _result(self, http: HttpRequest, job: Job) -> Any:
        (result,) = await self._results(http, [job])
        return result

    def _run(self, name: str) -> Served:
        run = self.runs.get(name)
        if run is None:
            message = f"no model {quoted(name)!r}; GET /v1/models lists them"
            raise ApiError(404, message, param="model", code="model_not_found")
        return run

    async def _models(self, http: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [self._card(name) for name in self.runs]})

    async def _model(self, http: HttpRequest) -> Response:
        name = http.path_params["name"]
        self._run(name)
        return JSONResponse(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        run = self.runs[name]
        return {
            "id": name, "object": "model", "created": run.created, "owned_by": "highrank",
            "fingerprint": run.fingerprint, **run.about,
        }  # fmt: skip

    async def _health(self, http: HttpRequest) -> Response:
        return JSONResponse({"status": "ok", "waiting": self.batcher.waiting})

    async def _metrics(self, http: HttpRequest) -> Response:
        return Response(self.metrics.text(), headers={"content-type": CONTENT_TYPE})


async def _read(http: HttpRequest, schema: type[RequestT]) -> RequestT:
    return parsed(await read_body(http), schema)


async def _left(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def _paced(events: Iterator[str]) -> AsyncIterator[str]:
    for event in events:
        yield event


async def _file(http: HttpRequest) -> Response:
    name, kind = PAGE_FILES[http.url.path]
    return Response(files("lm.serve").joinpath("page", name).read_bytes(), media_type=kind)


async def _refuse(http: HttpRequest, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        allowed = sorted(set((error.headers or {}).get("Allow", "").split(", ")) - {"HEAD"})
        texts = {404: "no such endpoint", 405: f"method not allowed; use {' or '.join(allowed)}"}
        error = ApiError(error.status_code, texts.get(error.status_code, "bad request"))
    assert isinstance(error, ApiError)
    headers = {"retry-after": "1"} if error.status in (429, 503) else None
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


async def _unfit(http: HttpRequest, error: Exception) -> Response:
    """The answer to settings or words that only decoding can check."""
    return await _refuse(http, ApiError(400, quoted(error, 400), code="invalid_value"))


async def _broken(http: HttpRequest, error: Exception) -> Response:
    """The answer to a failure that is not the client's. The gate logs it."""
    if short := shortage(error):
        return await _refuse(http, ApiError(503, str(short)))
    # Messages of other errors may name the server's files.
    said = str(error) if isinstance(error, DivergenceError) else "internal error; see the server's log"
    return await _refuse(http, ApiError(500, said))
