"""Worker processes for one piece of work each, which end with the command that started them."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

from lm.errors import WorkerError
from lm.stop import SIGNALS


def in_workers(work: Callable[..., None], tasks: Sequence[tuple[Any, ...]]) -> None:
    """Call ``work`` with each task's arguments, each in a process of its own.

    Raises the error of the first task in their order that fails, as one process would, when the tasks before
    it have ended. This kills the tasks after it. Raises WorkerError if a process is killed.
    """
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(len(tasks), multiprocessing.get_context("spawn"), _begin) as pool:
        try:
            with _blocked_signals():  # workers inherit it: this process ends them
                futures = [pool.submit(work, *task) for task in tasks]
            for future in futures:
                future.result()
        except BaseException as error:
            for process in set(multiprocessing.active_children()) - others:
                process.kill()
            if isinstance(error, BrokenProcessPool):
                raise WorkerError(
                    f"one of {len(tasks)} processes was killed, perhaps for lack of memory; run the same"
                    " command again with fewer --processes"
                ) from error
            raise


@contextmanager
def _blocked_signals() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """End this worker when the process that started it has ended, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
