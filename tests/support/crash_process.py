"""Processes that are struck while they work: what strikes them, how they end, and who starts them."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 600.0  # seconds after which a process that works for a second counts as hung, on a busy machine
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NO_COLOR": "1"}


@dataclass(frozen=True)
class Blow:
    """Signals to a process: at its ``at``-th change of the disk (of those at ``place``), or after seconds.

    Instead of the signals that change may fail with an ``error`` number. Or the whole process may have little
    memory (``memory`` bytes more than at its start), a limit on the size of a file, or a disk of its own.
    """

    signals: tuple[int, ...] = (signal.SIGKILL,)
    at: int = 0
    place: str = ""
    after: float = 0.0
    error: int = 0
    memory: int = 0
    file_size: int = 0
    disk: int = 0

    @property
    def deadly(self) -> bool:
        return signal.SIGKILL in self.signals and not self.shortage

    @property
    def shortage(self) -> bool:
        """Whether the process lacks something, rather than being struck."""
        return bool(self.error or self.memory or self.file_size or self.disk)

    def request(self) -> dict[str, Any]:
        """The part of a request to the fork server."""
        asked: dict[str, Any] = {"at": self.at, "at_place": self.place, "error": self.error}
        asked["signals"] = [] if self.shortage else [int(number) for number in self.signals]
        shortages = {"memory": self.memory, "file_size": self.file_size, "disk": self.disk}
        asked |= {name: value for name, value in shortages.items() if value}
        if self.after:
            asked["after"] = self.after
        return asked

    def __str__(self) -> str:
        if self.error:
            return f"{errno.errorcode[self.error]} at {self.place or 'step'} {self.at}"
        if self.shortage:
            return f"memory {self.memory}, file size {self.file_size}, disk {self.disk}"
        names = "+".join(signal.Signals(number).name for number in self.signals)
        return (
            f"{names} after {self.after:.3f} s"
            if self.after
            else f"{names} at {self.place or 'step'} {self.at}"
        )


@dataclass(frozen=True)
class Ended:
    """How a process ended: exit code or −signal, and the steps that it reached."""

    code: int
    seconds: float
    steps: list[str]
    hung: bool
    output: str

    def __str__(self) -> str:
        return f"exit {self.code}{', hung' if self.hung else ''}: {self.output.strip()[-300:] or 'no output'}"


class ForkServer:
    """Commands in forked children of a process that has imported everything."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.crash_server"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self.read()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise ConnectionError(f"the fork server ended with exit code {self.process.returncode}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(
        self,
        command: Sequence[object],
        place: Path,
        blow: Blow | None = None,
        settings: object = None,
        streams: Mapping[int, str] | None = None,
        memory: int = 0,
        record: Path | None = None,
    ) -> Ended:
        """Run one command inside a folder to its end, the program first; ``record`` its changes to a file."""
        self.output.write_text("")  # a child may be dead before it opens it
        request: dict[str, Any] = {
            "command": [str(argument) for argument in command],
            "place": str(place),
            "output": str(self.output),
            "limit": LIMIT,
            "settings": settings or {},
            "streams": streams or {},
        }
        if blow:
            request |= blow.request()
        if memory:
            request["memory"] = memory
        if record:
            request["record"] = str(record)
        assert self.process.stdin
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return Ended(**self.read(), output=self.output.read_text(encoding="utf-8", errors="replace"))

    def close(self) -> None:
        with self.process:  # closes its pipes, which ends it, and waits
            pass


def kill_interpreter(command: Sequence[object], place: Path, delay: float) -> int:
    """Train with the interpreter itself into ``run``, and SIGKILL it some seconds after its first commit."""
    process = subprocess.Popen(
        interpreter(command),
        cwd=place,
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and not list(place.glob("run/checkpoints/step-*[0-9]")):
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    return process.wait()


def interpreter(command: Sequence[object]) -> list[str]:
    """The command line of a program's command."""
    return [sys.executable, "-m", *map(str, command)]
