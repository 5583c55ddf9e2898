"""A command as several ranks that start at once, forked from a process that has loaded torch.

What torchrun does for its ranks is done here: environment, key-value store, and SIGTERM to the others when
one fails. The tests of launching itself use :mod:`tests.support.launching`.
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lm.ending import begin
from tests.support.fork_server import forked

Prepare = Callable[[int, list[str]], list[str]]  # makes the arguments of a rank, in its process
HOST = "127.0.0.1"


def unchanged(rank: int, arguments: list[str]) -> list[str]:
    """The arguments as they are."""
    return arguments


class Ranks:
    """The ranks of one command in a folder, with their output in another folder."""

    def __init__(self, folder: Path, size: int, line: Sequence[str], prepare: Prepare, streams: str) -> None:
        self.folder, self.size = folder, size
        self._streams = streams
        self._store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self.processes = [
            forked(_rank, folder, rank, size, self._store.port, streams, tuple(line), prepare)
            for rank in range(size)
        ]

    def ended(self, seconds: float = 60.0, patience: float = 30.0) -> "Ranks":
        """Wait for the end of all ranks.

        A failure brings SIGTERM to the others, and SIGKILL after ``patience`` seconds, as torchrun does.
        """
        until, failed = time.monotonic() + seconds, 0.0
        while alive := [rank for rank, process in enumerate(self.processes) if process.is_alive()]:
            now = time.monotonic()
            assert now < until, f"ranks go on: {self.output}"
            number = signal.SIGKILL if failed and now > failed + patience else signal.SIGTERM
            if number is signal.SIGKILL or (not failed and any(self.codes)):
                failed = now
                for rank in alive:
                    self.signal(rank, number)
            time.sleep(0.01)
        return self

    def signal(self, rank: int, number: signal.Signals) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        with suppress(ProcessLookupError):  # it has ended
            os.kill(pid, number)

    @property
    def codes(self) -> list[int | None]:
        return [process.exitcode for process in self.processes]

    def shown(self, stream: int) -> str:
        """Standard output, 1, or standard error, 2, of all ranks."""
        paths = [Path(self._streams, f"{stream}-{rank}") for rank in range(self.size)]
        return "".join(path.read_text() for path in paths if path.exists())

    @property
    def output(self) -> str:
        """Standard output and standard error of all ranks."""
        return self.shown(1) + self.shown(2)

    @property
    def errors(self) -> list[str]:
        """Lines about the end of a rank, or about a signal."""
        about = ("rank ", "another rank", "internal error", "stopping", "interrupted", "Traceback")
        return [line for line in self.output.splitlines() if line.startswith(about)]

    def wait_for(self, name: str) -> None:
        """Wait until a file of the folder is there."""
        until = time.monotonic() + 60
        while not (self.folder / name).exists():
            assert time.monotonic() < until, f"{name} does not appear: {self.output}"
            assert any(process.is_alive() for process in self.processes), self.output
            time.sleep(0.01)


@contextmanager
def ranks(folder: Path, size: int, *line: str, prepare: Prepare = unchanged) -> Iterator[Ranks]:
    """Start ``lm`` or ``dialog`` with the arguments of a line as several ranks; at the end all are killed."""
    with tempfile.TemporaryDirectory() as streams:
        started = Ranks(folder, size, line, prepare, streams)
        try:
            yield started
        finally:
            for process in started.processes:
                process.kill()
                process.join()


def _rank(
    folder: Path, rank: int, size: int, port: int, streams: str, line: Sequence[str], prepare: Prepare
) -> None:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {name: str(number) for name, number in place.items()}
    os.environ |= {"MASTER_ADDR": HOST, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.chdir(folder)
    for stream in (1, 2):
        os.dup2(os.open(f"{streams}/{stream}-{rank}", os.O_WRONLY | os.O_CREAT), stream)
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    begin()
    family, *arguments = line
    if family == "lm":
        from lm.cli import main
    else:
        from dialog.cli import main
    main(prepare(rank, arguments))
