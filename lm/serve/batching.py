"""The queue of requests: those that wait are decoded together, by one thread."""

import asyncio
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from lm.serve.failure import ApiError
from lm.steps import Check

ResultT = TypeVar("ResultT")

LINGER = 0.5  # times the duration of a batch, in which its clients are expected to ask again after it
MOST_LINGER = 0.1  # seconds that a request waits for them at most
BATCH_SECONDS = 60.0  # that a batch may take
BATCH_ROWS = 256  # texts that a batch of several jobs may decode


@dataclass(frozen=True, slots=True)
class Job:
    """Work for one request.

    Jobs of equal ``group`` may run together. ``run`` takes them and returns a result for each. It calls the
    given check at every step of decoding, which raises if the batch has to end. ``body`` is for ``run``.
    ``rows`` is the number of texts that it decodes, each a beam or a sample.
    """

    group: Hashable
    run: "Callable[[Sequence[Job], Check], Sequence[Any]]"
    body: Any
    rows: int = 1


class Entry(NamedTuple):
    """A job, the future of its result, and the number of its request."""

    job: Job
    future: "asyncio.Future[Any]"
    request: int


class Batcher:
    """Runs jobs in a thread, oldest first, each with the waiting ones of its group.

    A job whose future is cancelled before it begins is dropped. A batch ends when all of its futures are
    cancelled. Each job of a batch that fails goes to the end of the queue and runs alone, so only those at
    fault get an error.

    Args:
        most: jobs that run together at most.
        waiting: jobs that may wait.
        ran: called with the number of jobs of every batch.
        seconds: time that a batch may take.
        rows: texts that are decoded together at most, unless one job has more.
    """

    def __init__(
        self,
        most: int,
        waiting: int,
        ran: Callable[[int], None] = lambda jobs: None,
        seconds: float = BATCH_SECONDS,
        rows: int = BATCH_ROWS,
    ) -> None:
        self._most, self._limit, self._ran, self._seconds = most, waiting, ran, seconds
        self._rows = rows
        self._waiting: list[Entry] = []
        self._requests = 0
        self._arrived = asyncio.Event()
        self._closed = False

    @property
    def waiting(self) -> int:
        """The number of waiting jobs."""
        return len(self._unanswered())

    def _unanswered(self) -> list[Entry]:
        return [entry for entry in self._waiting if not entry.future.done()]

    def submit(self, *jobs: Job) -> "list[asyncio.Future[Any]]":
        """Enqueue the jobs of a request. ApiError 429 if too many wait, 503 after :meth:`close`."""
        if self._closed:
            raise ApiError(503, "the server is stopping", code="server_stopping")
        self._waiting = self._unanswered()  # without those that left
        if len(self._waiting) + len(jobs) > self._limit:
            raise ApiError(429, "too many requests wait; try again later", code="rate_limit_exceeded")
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Any]] = [loop.create_future() for _ in jobs]
        self._requests += 1
        self._waiting += [Entry(*pair, self._requests) for pair in zip(jobs, futures, strict=True)]
        self._arrived.set()
        return futures

    async def work(self) -> None:
        """Run jobs until :meth:`close`, and then those that still wait."""
        thread = DaemonThread("decoding")
        try:
            await self._work(thread)
        finally:
            thread.end()

    async def _work(self, thread: "DaemonThread") -> None:
        expected, until = 1, 0.0
        while True:
            if not self.waiting:
                self._waiting.clear()
                if self._closed:
                    return
                self._arrived.clear()
                await self._arrived.wait()
            await self._gather(min(expected, self._most), until)
            if batch := self._next():
                begun = time.monotonic()
                await self._run(batch, thread)
                ended = time.monotonic()
                expected = _clients([*filter(_answered, batch), *self._unanswered()])
                until = ended + min(MOST_LINGER, LINGER * (ended - begun))
            del batch  # whose failures keep the tensors of their decoding

    async def _gather(self, expected: int, until: float) -> None:
        """Wait for requests up to an expected number or a time, since answered clients ask again."""
        while not self._closed and (left := until - time.monotonic()) > 0:
            waiting = self._unanswered()
            if _clients(waiting) >= expected or sum(entry.job.rows for entry in waiting) >= self._rows:
                return
            self._arrived.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), left)

    def _next(self) -> list[Entry]:
        """Take the oldest job, and others of its group."""
        batch: list[Entry] = []
        left = []
        for entry in self._unanswered():
            if not batch or self._joins(entry.job, [one.job for one in batch]):
                batch.append(entry)
            else:
                left.append(entry)
        self._waiting = left
        return batch

    def _joins(self, job: Job, batch: Sequence[Job]) -> bool:
        rows = job.rows + sum(one.rows for one in batch)
        return job.group == batch[0].group and len(batch) < self._most and rows <= self._rows

    async def _run(self, batch: Sequence[Entry], thread: "DaemonThread") -> None:
        jobs, futures = [entry.job for entry in batch], [entry.future for entry in batch]
        self._ran(len(jobs))
        found = await asyncio.wrap_future(thread.call(partial(_outcome, jobs, self._check(futures))))
        if isinstance(found, list):
            for future, result in zip(futures, found, strict=True):
                if not future.done():  # else its client has left
                    future.set_result(result)
        elif len(batch) > 1:
            self._waiting += [entry._replace(job=replace(entry.job, group=object())) for entry in batch]
        elif not futures[0].done():
            futures[0].set_exception(found)

    def _check(self, futures: "Sequence[asyncio.Future[Any]]") -> Check:
        end = time.monotonic() + self._seconds

        def check() -> None:
            if time.monotonic() > end:
                slow = f"decoding takes more than {self._seconds:g} seconds"
                raise ApiError(400, f"{slow}; ask for fewer tokens, beams or replies", code="too_slow")
            if all(future.done() for future in futures):
                raise ApiError(499, "the client has left")

        return check

    def close(self) -> None:
        """Refuse further jobs; :meth:`work` returns after those that wait."""
        self._closed = True
        self._arrived.set()


class DaemonThread:
    """A thread that makes calls in turn until :meth:`end`. A call that hangs does not keep the process.

    Threads of the standard library's executors are no daemons, so the interpreter waits for them.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def call(self, function: Callable[[], ResultT]) -> Future[ResultT]:
        """Enqueue a call. The function must not raise, which would end the thread with calls that wait."""
        future: Future[ResultT] = Future()
        self._calls.put((function, future))
        return future

    def end(self) -> None:
        """End the thread after the calls that wait."""
        self._calls.put(None)

    def _work(self) -> None:
        while (entry := self._calls.get()) is not None:
            function, future = entry
            if future.set_running_or_notify_cancel():
                future.set_result(function())


def _answered(entry: Entry) -> bool:
    future = entry.future
    return future.done() and not future.cancelled() and future.exception() is None


def _clients(entries: Sequence[Entry]) -> int:
    """The number of requests that jobs belong to."""
    return len({entry.request for entry in entries})


def _outcome(jobs: Sequence[Job], check: Check) -> list[Any] | Exception:
    """The results of a batch, or the exception that ends it, of a kind that a future can hold."""
    try:
        results = list(jobs[0].run(jobs, check))
    except StopIteration as error:  # not allowed in futures
        return _caused(error)
    except Exception as error:
        return error
    except BaseException as error:  # a library that wants to exit must not end the server
        return _caused(error)
    if len(results) != len(jobs):
        return RuntimeError(f"{len(results)} results for {len(jobs)} jobs")
    return results


def _caused(error: BaseException) -> RuntimeError:
    wrapped = RuntimeError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
