"""The queue of requests: those that wait are decoded together, by one thread."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from lm.serve.failure import ApiError

LINGER = 0.004  # seconds that a batch waits for more requests, if the one before it was not alone


@dataclass(frozen=True, slots=True)
class Query:
    """Work for one request.

    Jobs of equal ``group`` may run together. ``run`` takes them and returns a result for each. ``body`` is
    for ``run``.
    """

    group: Hashable
    run: "Callable[[Sequence[Query]], Sequence[Any]]"
    body: Any


class Batcher:
    """Runs jobs in a thread, oldest first, each with the waiting ones of its group.

    A job whose future is cancelled before it begins is dropped.

    Args:
        most: jobs that run together at most.
        waiting: jobs that may wait.
        ran: called with the number of jobs of every batch.
    """

    def __init__(self, most: int, waiting: int, ran: Callable[[int], None] = lambda jobs: None) -> None:
        self._most, self._limit, self._ran = most, waiting, ran
        self._waiting: list[tuple[Query, asyncio.Future[Any]]] = []
        self._arrived = asyncio.Event()
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "decoding")

    @property
    def waiting(self) -> int:
        """The number of waiting jobs."""
        return sum(not future.done() for _, future in self._waiting)

    def submit(self, *jobs: Query) -> "list[asyncio.Future[Any]]":
        """Enqueue the jobs of a request. ApiError 429 if too many wait, 503 after :meth:`close`."""
        if self._closed:
            raise ApiError(503, "the server is stopping", code="server_stopping")
        if self.waiting + len(jobs) > self._limit:
            raise ApiError(429, "too many requests wait; try again later", code="rate_limit_exceeded")
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Any]] = [loop.create_future() for _ in jobs]
        self._waiting += zip(jobs, futures, strict=True)
        self._arrived.set()
        return futures

    async def work(self) -> None:
        """Run jobs until :meth:`close`, and then those that still wait."""
        together = False
        while True:
            if not self.waiting:
                self._waiting.clear()
                if self._closed:
                    return
                self._arrived.clear()
                await self._arrived.wait()
            if together and self.waiting < self._most:  # their clients are about to ask again
                await asyncio.sleep(LINGER)
            if batch := self._next():
                await self._run(batch)
                together = len(batch) > 1 or self.waiting > 0

    def _next(self) -> "list[tuple[Query, asyncio.Future[Any]]]":
        """Take the oldest job, and others of its group."""
        batch: list[tuple[Query, asyncio.Future[Any]]] = []
        left = []
        for entry in self._waiting:
            if entry[1].done():
                continue
            if len(batch) < self._most and (not batch or entry[0].group == batch[0][0].group):
                batch.append(entry)
            else:
                left.append(entry)
        self._waiting = left
        return batch

    async def _run(self, batch: "Sequence[tuple[Query, asyncio.Future[Any]]]") -> None:
        jobs = [job for job, _ in batch]
        self._ran(len(jobs))
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._thread, jobs[0].run, jobs)
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():  # else its client has left
                future.set_result(result)

    def close(self) -> None:
        """Refuse further jobs; :meth:`work` returns after those that wait."""
        self._closed = True
        self._arrived.set()

    def end(self) -> None:
        """Free the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
