"""Commands that torchrun starts as several processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def command(*arguments: str, torchrun: tuple[str, ...] = ()) -> list[str]:
    program = [sys.executable, "-m"]
    if torchrun:
        program += ["torch.distributed.run", "--standalone", *torchrun, "-m"]
    return [*program, *arguments]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def ended(folder: Path, line: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        line, cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=300
    )


@contextmanager
def started(folder: Path, line: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A launcher, which is killed with all that it has started."""
    process = subprocess.Popen(
        line, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            for pid in (*workers(process), process.pid):
                os.kill(pid, signal.SIGKILL)
            process.communicate()


def workers(process: subprocess.Popen[str]) -> list[int]:
    """The processes that a launcher has started, by number."""
    return sorted(children(process.pid))


def children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def wait_for(path: Path) -> None:
    until = time.monotonic() + 100
    while not path.exists():
        assert time.monotonic() < until, f"{path} does not appear"
        time.sleep(0.02)
