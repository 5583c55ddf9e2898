"""A fork server for killing commands: it imports everything once and forks a child for every command.

Started by ``crash_process.ForkServer``. A request is a line of JSON on stdin, its answer one on stdout:

    {"command": ["lm", "train", …], "place": FOLDER, "settings": {"module.NAME": value}, "output": FILE,
     "limit": s, "signals": [9], "error": errno, "at": n, "at_place": "", "after": s,
     "streams": {"1": ""}, "memory": bytes, "file_size": bytes, "disk": bytes, "record": FILE}
    {"code": exit status or −signal, "seconds": …, "steps": ["mkdir run", …], "hung": false}

The child runs the command in the folder ``place``, with those attributes of modules that ``settings`` names.
Every change that it makes to the disk under the folder is a step; before the ``at``-th one, or the ``at``-th
of those that :func:`place_of` calls ``at_place``, it sends itself ``signals``. A write is two steps, the
second with half of its bytes written. ``after`` (seconds) sends the first signal from outside instead. With
``error`` the step fails with that errno instead. A child that takes longer than ``limit`` is killed, and
reported as hung.

``streams`` names what standard streams go to, by their number: they are closed where that is empty, and ``|``
is a pipe that nobody reads.
``memory`` is what the child may take besides what it has, ``file_size`` the most that a file may grow to.
``disk`` gives it a file system of this size in the place, whose content is copied to ``PLACE.disk`` when
it ends. ``record`` notes every change of the disk with its bytes (:mod:`power`). The last three leave out the
steps.
"""

import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import re
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lm.config.presets import presets_and_bases
from lm.console.app import command_of
from tests.support.power import Recorder

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
BRIDGES = tuple(f"{family}.{name}" for family in ("lm", "dialog") for name in ("hf", "export", "huggingface"))
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def place_of(step: str) -> str:
    """A step without its numbers: ``rename checkpoints/step-N``, whichever commit it belongs to."""
    return re.sub(r"\d+", "N", step)


class Steps:
    """Counts the changes under a folder and strikes at one of them; the trace is one line for each."""

    def __init__(self, request: dict[str, Any], trace: int) -> None:
        self.folder, self.trace = os.path.join(request["place"], ""), trace
        self.at, self.place = request.get("at", 0), request.get("at_place", "")
        self.signals: list[int] = request.get("signals", [])
        self.error: int = request.get("error", 0)
        self.count = 0
        self.files: dict[int, str] = {}  # open descriptors under the folder
        self.write, self.kill = os.write, os.kill
        self.opening = False

    def inside(self, path: object) -> str:
        """The path relative to the folder; empty outside it."""
        if isinstance(path, int):
            return self.files.get(path, "")
        full = os.path.abspath(os.fsdecode(path))  # type: ignore[arg-type]
        return full.removeprefix(self.folder) if full.startswith(self.folder) else ""

    def step(self, kind: str, path: str) -> None:
        """One step has been reached: note it, then strike if it is the one."""
        self.write(self.trace, os.fsencode(f"{kind} {path}\n"))
        if self.place and place_of(f"{kind} {path}") != self.place:
            return
        self.count += 1
        if self.count == self.at and self.error:
            raise OSError(self.error, os.strerror(self.error))
        if self.count == self.at:
            for number in self.signals:
                self.kill(os.getpid(), number)
                time.sleep(0.2 if len(self.signals) > 1 else 0)  # further apart than an echo of the first

    def install(self) -> None:
        """Replace the functions of ``os`` that change a disk, and watch for files opened any other way."""
        for name in ("rename", "replace", "link", "symlink"):
            setattr(os, name, self.counted(name, getattr(os, name), target=1))
        for name in ("unlink", "remove", "mkdir", "rmdir", "fsync", "fdatasync", "ftruncate", "truncate"):
            setattr(os, name, self.counted(name, getattr(os, name), target=0))
        os.write = self.counted_write(os.write)  # type: ignore[assignment]
        os.open = self.counted_open(os.open)  # type: ignore[assignment]
        sys.addaudithook(self.audit)

    def counted(self, name: str, function: Callable[..., Any], target: int) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if place := self.inside(arguments[target]):
                self.step(name, place)
            return function(*arguments, **options)

        return call

    def counted_write(self, function: Callable[..., int]) -> Callable[..., int]:
        def call(fd: int, data: bytes) -> int:
            place = self.files.get(fd)
            if not place:
                return function(fd, data)
            self.step("write", place)
            half = len(data) // 2
            written = function(fd, memoryview(data)[:half]) if half else 0
            self.step("write-half", place)
            return written + function(fd, memoryview(data)[written:])

        return call

    def counted_open(self, function: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            place = "" if isinstance(path, int) else self.inside(path)
            if place and flags & WRITING:
                self.step("open", place)
            self.opening = True
            try:
                fd = function(path, flags, *arguments, **options)
            finally:
                self.opening = False
            self.files.pop(fd, None)  # descriptors are used again
            if place:
                self.files[fd] = place
            return fd

        return call

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """A file that is opened for writing past ``os.open`` is a step as well."""
        if event != "open" or self.opening or isinstance(arguments[0], int) or arguments[0] is None:
            return
        path, _, flags = arguments
        if flags & WRITING and (place := self.inside(path)):
            self.step("open-file", place)


def run_child(request: dict[str, Any], trace: int) -> None:
    """In the forked child: run the command; never returns."""
    code: object = 70
    recorder = Recorder(request["place"])
    try:
        for number in SIGNALS:  # nohup may have had one ignored
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        sys.stdin, sys.stdout, sys.stderr = io.StringIO(), os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.__stderr__ = sys.stderr  # as in any interpreter, it is closed at the very end
        os.close(output)
        redirect(request.get("streams", {}))
        if "disk" in request:
            own_disk(request["place"], request["disk"])
        os.chdir(request["place"])
        if memory := request.get("memory"):
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
        for name, value in request["settings"].items():
            module, _, attribute = name.rpartition(".")
            getattr(sys.modules[module], attribute)  # a setting that nothing reads would go unnoticed
            setattr(sys.modules[module], attribute, value)
        if "record" in request:
            recorder.install()
        elif not request.keys() & {"file_size", "disk"}:
            Steps(request, trace).install()
        sys.argv = request["command"]
        if size := request.get("file_size"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        try:
            listening(importlib.import_module(f"{sys.argv[0]}.__main__")).main()
            code = 0
        except SystemExit as ending:
            code = ending.code or 0
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if "record" in request:
            recorder.save(request["record"])
        if "disk" in request:  # it goes with this process
            shutil.copytree(request["place"], f"{request['place']}.disk", symlinks=True)
        os._exit(code if isinstance(code, int) else 71)


def listening(program: Any) -> Any:
    """The program, whose process gets the signals that were sent to it once it has begun, and not before."""
    begin = program.begin

    def begun() -> None:
        begin()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    program.begin = begun
    return program


def redirect(streams: dict[str, str]) -> None:
    """Standard streams as a shell would have set them before the interpreter began."""
    for number, path in streams.items():
        fd, name = int(number), ("stdin", "stdout", "stderr")[int(number)]
        if path == "|":
            read, write = os.pipe()
            os.close(read)
            setattr(sys, name, None)  # it could seek
            os.dup2(write, fd)
            setattr(sys, name, os.fdopen(fd, "w", encoding="utf-8"))
        elif path:
            os.dup2(os.open(path, os.O_WRONLY), fd)
        else:
            setattr(sys, name, None)  # a stream that owns the descriptor closes it
            with suppress(OSError):  # Python 3.13 reports a stream whose descriptor was closed before
                os.close(fd)


def own_disk(place: str, size: int) -> None:
    """Mount a file system of ``size`` bytes in the place, which only this process sees, and copy it in."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, private = 0x00020000, (1 << 18) | 0x4000
    kept = f"{place}.before"
    shutil.copytree(place, kept, symlinks=True)
    options = f"size={size}".encode()
    if (
        libc.unshare(new_namespace)
        or libc.mount(b"none", b"/", None, private, None)
        or libc.mount(b"none", place.encode(), b"tmpfs", 0, options)
    ):
        raise OSError(ctypes.get_errno(), "cannot mount a file system")
    shutil.copytree(kept, place, symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(kept)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Fork, strike from outside if asked to, wait, and tell how it ended."""
    trace_path = Path(f"{request['output']}.steps")
    trace = os.open(trace_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    started = time.monotonic()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    pid = os.fork()
    if pid == 0:
        run_child(request, trace)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.close(trace)
    blows = [(request["limit"], signal.SIGKILL)]
    if "after" in request:
        blows.append((request["after"], request["signals"][0]))
    ended, status = os.waitpid(pid, os.WNOHANG)
    while not ended:
        if blows and time.monotonic() - started >= blows[-1][0]:
            os.kill(pid, blows.pop()[1])
        time.sleep(0.001)
        ended, status = os.waitpid(pid, os.WNOHANG)
    seconds = time.monotonic() - started
    steps = trace_path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return {"code": os.waitstatus_to_exitcode(status), "seconds": seconds, "steps": steps, "hung": not blows}


def load(name: str) -> None:
    """Import a module of ours, unless it is for a library that is not installed."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("lm", "dialog"):
            raise


def load_everything() -> None:
    """Import what any command may need, and do no arithmetic: a forked child must find no other thread.

    The bridges to transformers stay out, which take as long as all the rest and which no case needs.
    """
    for package in ("lm", "dialog"):
        module = importlib.import_module(package)
        for found in pkgutil.walk_packages(module.__path__, f"{package}."):
            if not found.name.endswith("__main__") and not found.name.startswith(BRIDGES):
                load(found.name)
    for name in ("safetensors.torch", "rich.table"):
        importlib.import_module(name)
    for family in ("lm", "dialog"):  # once, not by every child
        presets_and_bases(family)
        command_of(sys.modules[f"{family}.cli"].app)
    threads = (
        len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()
    )
    if threads > 1:
        raise SystemExit(f"{threads} threads after the imports: forking would not be safe")


def serve() -> None:
    """Import, announce readiness, then answer until stdin closes."""
    load_everything()
    gc.collect()
    gc.freeze()  # so that a child's collector writes to none of the pages that it shares
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
    os._exit(0)  # extension modules call objects leaks that the collector was told to leave


if __name__ == "__main__":
    serve()
