"""Worker processes of a search, which end after a signal to their parent or its death.

The workers are in their own sessions, so that Ctrl-C in a terminal reaches only the parent. A pipe connects
each worker with the parent. When the parent's end closes, the worker stops as after a signal, and saves its
trial.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from lm.ending import EarlyStop, shortage
from lm.engine.events import Reporter, no_report
from lm.engine.progress import PlainReporter
from lm.errors import HighrankError, Interrupted
from lm.stop import RESUME, StopFlag
from lm.tuning.search import Search, SearchPlan, Train

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class SearchJob:
    """Arguments of a worker."""

    folder: Path
    plan: SearchPlan[Any]
    train: Train[Any]  # a top-level function, which the worker can import
    trials: int
    minutes: float
    threads: int  # of torch


def work_together(job: SearchJob, workers: int) -> None:
    """Run ``workers`` processes on a search to its end. If one fails, all are stopped.

    Raises Interrupted after a signal, once all have saved. Raises the error of the first failed worker.
    """
    context = multiprocessing.get_context("spawn")
    stop = StopFlag(RESUME)
    stop.install()
    started: list[tuple[SpawnProcess, Connection]] = []
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited until the worker has its session
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_worker, args=(job, theirs))
            process.start()
            theirs.close()
            started.append((process, ours))
        signal.signal(signal.SIGINT, before)
        failure = _attend(started, stop.__bool__)
    finally:
        for _, connection in started:
            connection.close()
        for process, _ in started:
            process.join()
        stop.uninstall()
    stop.check()
    if failure is not None:
        raise failure


def _attend(
    started: Sequence[tuple[SpawnProcess, Connection]], stopped: Callable[[], bool]
) -> HighrankError | None:
    """Wait until all workers have ended, one has failed, or a signal has come. Returns the failure."""
    running = dict(enumerate(started))
    while running and not stopped():
        wait([process.sentinel for process, _ in running.values()], POLL_SECONDS)
        for number, (process, connection) in list(running.items()):
            if process.is_alive():
                continue
            del running[number]
            if process.exitcode:
                return _failure(number, process, connection)
    return None


def _failure(number: int, process: SpawnProcess, connection: Connection) -> HighrankError:
    """Error that a worker reported before its end, or one for its signal or exit code."""
    with suppress(EOFError):  # closed without a report
        if connection.poll():
            told: HighrankError = connection.recv()
            return told
    again = "run the same command again to resume"
    if process.exitcode and process.exitcode < 0:  # killed, for example by the kernel when memory is short
        ended = signal.Signals(-process.exitcode).name
        return Interrupted(f"worker {number} was ended by {ended}; {again}")
    if process.exitcode == Interrupted.exit_code:  # by a signal before or after its training
        return Interrupted(f"worker {number} was interrupted; {again}")
    return HighrankError(f"worker {number} ended with exit code {process.exitcode}; {again}")


def _worker(job: SearchJob, connection: Connection) -> None:
    os.setsid()
    EarlyStop().install()
    gone = threading.Event()
    threading.Thread(target=_watch, args=(connection, gone), daemon=True).start()
    import torch

    torch.set_num_threads(job.threads)  # train.threads, if set, is applied later

    def report(folder: Path) -> Reporter:
        if gone.is_set():  # the signal came when the previous trial had already ended
            raise Interrupted(f"interrupted; {RESUME}")
        return no_report

    try:
        notes = PlainReporter(sys.stderr)
        Search(job.folder, job.plan).run(job.trials, job.train, report, notes, job.minutes)
    except KeyboardInterrupt:
        sys.exit(Interrupted.exit_code)
    except BaseException as error:
        told = error if isinstance(error, HighrankError) else shortage(error)
        if told is None:
            raise
        with suppress(OSError):  # the parent may be gone
            connection.send(told)
        sys.exit(told.exit_code)


def _watch(connection: Connection, gone: threading.Event) -> None:
    """Stop the process as a signal would, once the parent's end is closed."""
    connection.poll(None)
    gone.set()
    os.kill(os.getpid(), signal.SIGTERM)
