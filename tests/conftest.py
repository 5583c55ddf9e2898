"""What every test runs under: fixed seeds, one thread, no network, no files outside its own folders."""

import atexit
import errno
import gc
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

# Read by libraries when they are imported, and inherited by the processes that tests start.
_SCRATCH = tempfile.mkdtemp(prefix="highrank-tests-")
atexit.register(shutil.rmtree, _SCRATCH, ignore_errors=True)
os.environ |= {
    "OMP_NUM_THREADS": "1",
    "HF_HOME": f"{_SCRATCH}/huggingface",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "MPLBACKEND": "Agg",
    "MPLCONFIGDIR": f"{_SCRATCH}/matplotlib",
    "COLUMNS": "120",
    "NO_COLOR": "1",
}
os.environ.pop("FORCE_COLOR", None)


# Under nohup, and in the background of a shell, some signals are ignored, and what tests start would inherit
# that. With a handler that does nothing pytest goes on ignoring them; a new program gets the default back.
for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda number, frame: None)


_MEMORY, _ROOM = Path("/dev/shm"), 2 << 30  # a file system in memory, and the bytes that the tests may need


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep the folders of tests in memory if there is room: else half of the time is waiting for a disk.

    ``--basetemp FOLDER`` names another place. Parallel processes get a part of the folder of the first one.
    """
    if config.option.basetemp is None and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM:
        config.option.basetemp = tempfile.mkdtemp(prefix="highrank-tests-", dir=_MEMORY)
        atexit.register(shutil.rmtree, config.option.basetemp, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the files that take longest first, so that parallel processes end together."""
    slowest = (
        "tests/system/",
        "tests/parallel/",
        "tests/engine/",
        "tests/dialog/",
        "tests/tuning/",
        "tests/studies/",
    )
    items.sort(key=lambda item: not item.nodeid.startswith(slowest))


def pytest_collection_finish() -> None:
    """Thousands of collected tests are kept to the end: let no garbage collection walk through them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # with the usual 700 objects, a twentieth of the time goes into it


def pytest_runtest_setup() -> None:
    """Seed the global generators that have been loaded; importing torch here would slow the light tests."""
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(0)
        torch.set_num_threads(1)
        if torch.cuda.is_initialized():  # else torch.manual_seed formats a traceback, to seed GPUs later
            torch.cuda.manual_seed_all(0)


def pytest_runtest_teardown() -> None:
    """No test leaves gradients switched off for the others, as a generator inside ``no_grad`` does."""
    if torch := sys.modules.get("torch"):
        enabled = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        assert enabled, "gradients are left switched off"


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Any:
    """Connections and look-ups fail at once; sockets between local processes stay possible."""
    connect = socket.socket.connect

    def refuse(*arguments: object, **options: object) -> NoReturn:
        raise AssertionError("a test tried to use the network")

    def connect_locally(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:
            refuse()
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect_locally)
        patch.setattr(socket.socket, "connect_ex", refuse)
        patch.setattr(socket.socket, "sendto", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        yield


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is also the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def unwritable(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Refuses to open files of a folder for writing, as a read-only file system does to every user."""

    def make(folder: Path) -> None:
        opened = os.open

        def read_only(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and Path(path).absolute().is_relative_to(
                folder
            ):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return opened(path, flags, *arguments, **options)

        monkeypatch.setattr(os, "open", read_only)

    return make


@pytest.fixture
def ending(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line's ``main`` in this process: exit code, stdout and stderr."""

    def run(main: Callable[..., Any], *arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    return run


@pytest.fixture
def dialog(ending: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    """Runs ``dialog`` in this process: exit code, stdout and stderr."""
    from dialog.cli import main

    return partial(ending, main)


@pytest.fixture(scope="session")
def corpora() -> Path:
    """The folder of licensed corpora, named by HIGHRANK_CORPORA; tests that use it are marked `corpora`."""
    folder = os.environ.get("HIGHRANK_CORPORA", "")
    if not folder:
        pytest.skip("HIGHRANK_CORPORA names no folder")
    path = Path(folder).resolve()
    assert path.is_dir(), f"HIGHRANK_CORPORA names {path}, which is no folder"
    return path
