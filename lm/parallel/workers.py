"""Worker processes for one piece of work each, which end with the command that started them.

The standard library pickles arguments and errors, of which only our own and those of the system are sent as
they are. Only this command and its workers hold the pipes.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from lm.errors import HighrankError, WorkerError
from lm.stop import SIGNALS


def in_workers(work: Callable[..., None], tasks: Sequence[tuple[Any, ...]]) -> None:
    """Call ``work`` with each task's arguments, each in a process of its own.

    Raises the error of the first task in their order that fails, as one process would, when the tasks before
    it have ended. This kills the tasks after it. Raises WorkerError as soon as a process is killed.
    """
    started = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()  # its start would unblock signals
    processes, answers = [], list[Connection]()
    try:
        with _blocked_signals():  # workers inherit it: this process ends them
            for task in tasks:
                answer, given = started.Pipe(duplex=False)
                processes.append(started.Process(target=_answer, args=(given, work, task)))
                answers.append(answer)
                processes[-1].start()
                given.close()
        _require_done(answers)
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def _require_done(answers: Sequence[Connection]) -> None:
    """Wait for all answers, which are errors or None. Raise an error once all before it are known."""
    given: dict[Connection, Exception | None] = {}
    while len(given) < len(answers):
        for answer in wait([answer for answer in answers if answer not in given]):
            assert isinstance(answer, Connection)
            try:
                given[answer] = _failure(*answer.recv())
            except EOFError:
                raise WorkerError(
                    f"one of {len(answers)} processes was killed, perhaps for lack of memory; run the same"
                    " command again with fewer --processes"
                ) from None
        for answer in answers:
            if answer not in given:
                break
            if error := given[answer]:
                raise error


def _answer(given: Connection, work: Callable[..., None], task: tuple[Any, ...]) -> None:
    """The work of one process, which sends its error or None, and the traceback of an internal error."""
    _follow_parent()
    failure: Exception | None = None
    told = ""
    try:
        work(*task)
    except (HighrankError, OSError) as error:
        failure = error
    except Exception as error:
        failure = RuntimeError(f"{type(error).__name__} in a worker: {error}")  # others may not be pickled
        told = traceback.format_exc()
    given.send((failure, told))


def _failure(error: Exception | None, told: str) -> Exception | None:
    """The error of a worker, with its traceback as the cause."""
    if error is not None and told:
        error.__cause__ = RuntimeError(told)
    return error


@contextmanager
def _blocked_signals() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _follow_parent() -> None:
    """End this worker when the process that started it has ended, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
