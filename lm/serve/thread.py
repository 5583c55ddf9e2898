"""A thread for blocking calls that an event loop waits for."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class DaemonThread:
    """A thread that makes calls in turn until :meth:`end`. A call that hangs does not keep the process.

    Threads of the standard library's executors are no daemons, so the interpreter waits for them.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def call(self, function: Callable[[], ResultT]) -> "Future[ResultT]":
        """Enqueue a call. The function must not raise."""
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
