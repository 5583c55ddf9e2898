"""Peak memory of computations, each in a process of its own that has computed nothing before."""

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from tests.support.fork_server import fork_server, forked

MEASURABLE = Path("/proc/self/clear_refs").exists()  # there is a high-water mark that can be reset


def status(key: str) -> int:
    """A number of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


def peak(work: Callable[[], object]) -> int:
    """The most memory of this process while it works, in bytes above what it had."""
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    work()
    return status("VmHWM") - before


def measured(measure: Callable[[Any], float], cases: Sequence[Any]) -> list[float]:
    """``measure(case)`` of every case; a function of a module, which uses :func:`peak` or :func:`status`."""
    return [_measured(measure, case) for case in cases]


def _measured(measure: Callable[[Any], float], case: Any) -> float:
    reader, writer = fork_server().Pipe(duplex=False)
    process = forked(_send, measure, case, writer)
    writer.close()
    try:
        found: float = reader.recv()
    finally:
        process.join()
    return found


def _send(measure: Callable[[Any], float], case: Any, writer: Connection) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    writer.send(measure(case))
