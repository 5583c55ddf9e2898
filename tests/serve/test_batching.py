"""The queue of requests: what runs together, what is refused, what is dropped, and the end."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from lm.serve.batching import MOST_LINGER, Batcher, Job
from lm.serve.failure import ApiError
from lm.steps import Check


class Work:
    """Jobs that record their batches; the first batch runs until it is released."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.begun, self.released = threading.Event(), threading.Event()

    def job(self, body: Any, group: str = "one", rows: int = 1) -> Job:
        return Job(group, self._run, body, rows)

    def _run(self, jobs: Sequence[Job], check: Check) -> list[Any]:
        self.batches.append([job.body for job in jobs])
        self.begun.set()
        assert self.released.wait(10)
        if any(job.body == "short" for job in jobs):
            return []
        if error := next((job.body for job in jobs if isinstance(job.body, BaseException)), None):
            raise error
        while any(job.body == "endless" for job in jobs):
            check()
        return [job.body * 2 for job in jobs]


async def begun(
    work: Work, batcher: Batcher, body: Any = 0
) -> "tuple[asyncio.Task[None], asyncio.Future[Any]]":
    """A worker, and the future of a first job that it has begun."""
    task = asyncio.create_task(batcher.work())
    (first,) = batcher.submit(work.job(body))
    await asyncio.to_thread(work.begun.wait, 10)
    return task, first


def test_those_that_wait_run_together_by_group_and_the_oldest_first() -> None:
    work = Work()

    async def run() -> list[Any]:
        batcher = Batcher(most=3, waiting=10)
        task, first = await begun(work, batcher)
        bodies = [(1, "one"), (2, "two"), (3, "one"), (4, "one"), (5, "one"), (6, "two")]
        futures = [future for body, group in bodies for future in batcher.submit(work.job(body, group))]
        work.released.set()
        batcher.close()
        await task
        return [future.result() for future in (first, *futures)]

    assert asyncio.run(run()) == [0, 2, 4, 6, 8, 10, 12]
    assert work.batches == [[0], [1, 3, 4], [2, 6], [5]]


def test_a_batch_has_few_rows_except_those_of_a_single_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LINGER", "MOST_LINGER"):  # no batch that is full waits for further jobs
        monkeypatch.setattr(f"lm.serve.batching.{name}", 1e6)
    work = Work()

    async def run() -> None:
        batcher = Batcher(most=3, waiting=10, rows=5)
        task, _ = await begun(work, batcher)
        futures = batcher.submit(*(work.job(body, rows=rows) for body, rows in enumerate([2, 3, 1, 9, 4])))
        work.released.set()
        assert await asyncio.wait_for(asyncio.gather(*futures), 5) == [0, 2, 4, 6, 8]
        batcher.close()
        await task

    asyncio.run(run())
    assert work.batches == [[0], [0, 1], [2, 4], [3]]


def test_too_many_are_refused_and_one_that_is_cancelled_makes_room_and_never_runs() -> None:
    work = Work()

    async def run() -> None:
        batcher = Batcher(most=3, waiting=2)
        task, first = await begun(work, batcher)
        left, kept = (batcher.submit(work.job(body))[0] for body in (1, 2))
        with pytest.raises(ApiError) as refused:
            batcher.submit(work.job(3))
        assert refused.value.status == 429
        left.cancel()
        (late,) = batcher.submit(work.job(4))
        first.cancel()  # its client leaves while it runs
        work.released.set()
        assert [await kept, await late] == [4, 8]
        batcher.close()
        with pytest.raises(ApiError) as refused:
            batcher.submit(work.job(5))
        assert refused.value.status == 503
        await task

    asyncio.run(run())
    assert work.batches == [[0], [2, 4]]


def test_requests_whose_clients_have_left_are_dropped_while_a_batch_runs() -> None:
    work = Work()

    async def run() -> int:
        batcher = Batcher(most=3, waiting=2)
        task, _ = await begun(work, batcher)
        for body in range(50):
            batcher.submit(work.job(body))[0].cancel()
        kept = len(batcher._waiting)
        work.released.set()
        batcher.close()
        await task
        return kept

    assert asyncio.run(run()) == 1


@pytest.mark.parametrize(
    "bad",
    [
        ValueError("bad"),
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration(),
        asyncio.CancelledError(),
        "short",
    ],
    ids=repr,
)
def test_an_error_reaches_only_the_job_at_fault_and_later_ones_go_on(bad: Any) -> None:
    work = Work()
    work.released.set()

    async def run() -> None:
        batcher = Batcher(most=3, waiting=10)
        task = asyncio.create_task(batcher.work())
        wrong, right = batcher.submit(work.job(bad), work.job(1))
        assert await asyncio.wait_for(right, 5) == 2
        with pytest.raises((ValueError, RuntimeError)):
            await asyncio.wait_for(wrong, 5)
        assert await asyncio.wait_for(batcher.submit(work.job(2))[0], 5) == 4
        batcher.close()
        await asyncio.wait_for(task, 5)

    asyncio.run(run())
    assert work.batches == [[bad, 1], [bad], [1], [2]]


@pytest.mark.parametrize("leaves", [True, False])
def test_a_batch_ends_when_its_time_is_over_or_when_all_of_its_clients_have_left(
    leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LINGER", "MOST_LINGER"):  # nobody waits for a client without an answer
        monkeypatch.setattr(f"lm.serve.batching.{name}", 1e6)
    work = Work()

    async def run() -> None:
        batcher = Batcher(most=3, waiting=10, seconds=60 if leaves else 0.05)
        task, endless = await begun(work, batcher, "endless")
        if leaves:
            endless.cancel()
        work.released.set()
        assert await asyncio.wait_for(batcher.submit(work.job(2))[0], 5) == 4
        if not leaves:
            with pytest.raises(ApiError, match="ask for fewer tokens"):
                await endless
        batcher.close()
        await task

    asyncio.run(run())
    assert work.batches == [["endless"], [2]]


def test_only_the_job_that_is_too_slow_alone_gets_the_error_and_others_are_not_held_up() -> None:
    work = Work()

    async def run() -> None:
        batcher = Batcher(most=3, waiting=10, seconds=0.05)
        task, first = await begun(work, batcher)
        slow, quick = batcher.submit(work.job("endless"), work.job(1))
        (other,) = batcher.submit(work.job(2, "two"))
        work.released.set()
        assert [await first, await quick, await other] == [0, 2, 4]
        with pytest.raises(ApiError, match="ask for fewer tokens"):
            await slow
        batcher.close()
        await task

    asyncio.run(run())
    assert work.batches == [[0], ["endless", 1], [2], ["endless"], [1]]


def test_clients_that_ask_again_at_once_stay_together() -> None:
    """A request that comes just after a batch has begun waits for its fellows instead of going alone."""
    work = Work()
    work.released.set()

    async def run() -> None:
        batcher = Batcher(most=8, waiting=20)
        task = asyncio.create_task(batcher.work())

        async def client() -> None:
            for _ in range(10):
                await batcher.submit(work.job(1))[0]

        await asyncio.gather(*(client() for _ in range(4)))
        batcher.close()
        await task

    asyncio.run(run())
    assert len(work.batches) <= 13, "10 of 4, and few more at the beginning"


@pytest.mark.parametrize("jobs", [1, 5])
def test_a_client_without_others_is_not_kept_waiting(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The several jobs of its first request are no further clients, who would be waited for."""
    for name in ("LINGER", "MOST_LINGER"):
        monkeypatch.setattr(f"lm.serve.batching.{name}", 1e6)
    work = Work()
    work.released.set()

    async def run() -> None:
        batcher = Batcher(most=8, waiting=20)
        task = asyncio.create_task(batcher.work())
        await asyncio.gather(*batcher.submit(*(work.job(body) for body in range(jobs))))
        assert await asyncio.wait_for(batcher.submit(work.job(7))[0], 5) == 14
        batcher.close()
        await task

    asyncio.run(run())
    assert work.batches == [[*range(jobs)], [7]]


def test_nobody_waits_long_for_clients_that_do_not_come_back() -> None:
    work = Work()

    async def run() -> float:
        batcher = Batcher(most=8, waiting=20)
        task, _ = await begun(work, batcher)
        pair = [batcher.submit(work.job(body))[0] for body in (1, 2)]
        await asyncio.sleep(0.5)  # so long that half of it would be noticed
        work.released.set()
        await asyncio.gather(*pair)
        began = asyncio.get_running_loop().time()
        await batcher.submit(work.job(3))[0]
        waited = asyncio.get_running_loop().time() - began
        batcher.close()
        await task
        return waited

    assert asyncio.run(run()) < 10 * MOST_LINGER
