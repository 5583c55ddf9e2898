"""Start and end of a process: signals, closed or full standard streams, one-line errors, exit codes.

Imports nothing slow, because :func:`begin` comes before all other imports.
"""

import atexit
import errno
import io
import os
import shlex
import signal
import sys
import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FrameType

from lm.begun import leave
from lm.errors import HighrankError, Interrupted, OutOfMemory, StorageError, WorkerError, visible
from lm.launched import leads, rank_prefix
from lm.stop import SIGNALS, StopFlag, clean_up, ignore_signals, postpone

_OWNER = "check the owner and the mode of the file and its folder"
_NO_ROOM, _ELSEWHERE = "free some, or write elsewhere", "write elsewhere"
_UNWRITABLE = {errno.ENOSPC: _NO_ROOM, errno.EDQUOT: _NO_ROOM, errno.EFBIG: _ELSEWHERE, errno.EIO: _ELSEWHERE}
_SHORTAGE = (  # messages of out-of-memory errors of libraries, in lower case, besides MemoryError
    "can't allocate memory",  # torch's allocator
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "std::bad_alloc",
    "could not create a primitive",  # oneDNN, which gives no reason
    "could not execute a primitive",
    "failed to map segment",  # while a library is loaded
    "alloc_failed",  # cuBLAS
    "pyobject pointer is null",  # safetensors, whose panic is not an Exception
)
# commands that go on from what they saved; all others start over
RESUMED = frozenset(("bottleneck", "demo", "dynamic", "finetune", "reverse-copy", "train", "tune"))
_command = list[str]()  # words of the command line; empty until take_command
_lost = ContextVar[OSError | None]("lost", default=None)


def begin() -> None:
    """Set up signals and standard streams, first in every process; from here on a signal exits with 75.

    Python's own end, which would restore the default handlers, ignores signals.
    """
    for number in SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler, leave):
            signal.signal(number, _leave)
    atexit.register(ignore_signals)  # the first to register is the last to run
    _open_streams()


def take_command(words: Sequence[str]) -> None:
    """Set the command line: the program and its arguments."""
    _command[:] = words


def given_command() -> str:
    """The command line as given, quoted for a shell; empty in a Python program of the user's own."""
    return shlex.join(_command)


def again() -> str:
    """The remedy after an interruption: the same command, and its effect once the command is known."""
    if not _command:
        return "run the same command again"
    command = next((word for word in _command[1:] if not word.startswith("-")), "")
    return f"run the same command again {'to resume' if command in RESUMED else 'to start over'}"


def _leave(number: int, frame: FrameType | None) -> None:
    """Signal handler that exits at once, before the work begins or after its end. Rank 0 says so."""
    with suppress(OSError):
        os.write(2, f"interrupted; {again()}\n".encode() if leads() else b"")
    os._exit(Interrupted.exit_code)


class EarlyStop(StopFlag):
    """Signal handling of all commands except training: the first signal raises KeyboardInterrupt anywhere.

    In a section of :func:`lm.stop.deferred_signals` the KeyboardInterrupt comes at the end of the section. In
    an import, a finaliser or the callbacks of Python's own containers of weak references, which may swallow
    exceptions, the first signal ends the process.
    """

    def _receive(self, number: int, frame: FrameType | None) -> None:
        first = not self
        super()._receive(number, frame)
        if not first or postpone():
            return
        if _loses_exceptions(frame):
            clean_up()
            _leave(number, frame)
        raise KeyboardInterrupt


_CALLBACKS = {  # of weak references: Python prints what they raise, and goes on
    weakref.finalize.__call__.__code__,
    *(
        part
        for kind in (weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
        for part in kind.__init__.__code__.co_consts
        if isinstance(part, CodeType)
    ),
}


def _loses_exceptions(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        imports = code.co_filename == "<frozen importlib._bootstrap>"
        if imports or code.co_name == "__del__" or code in _CALLBACKS:
            return True
        frame = frame.f_back
    return False


class _StandardError(io.TextIOWrapper):
    """Standard error that ignores write errors, so that neither work nor exit code depends on its reader."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def _open_streams() -> None:
    """Open closed standard streams on the null device, and make encoding errors impossible."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # else the next opened file would get its descriptor
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _StandardError(
            io.FileIO(sys.stderr.fileno(), "w", closefd=False),
            encoding=sys.stderr.encoding,
            errors="backslashreplace",
            line_buffering=True,
            write_through=True,
        )


def not_printed(error: OSError) -> None:
    """Record that something could not be printed; :func:`flush_output` reports it at the end of the work.

    For a closed pipe, raise BrokenPipeError, which ends the work.
    """
    if isinstance(error, BrokenPipeError):
        raise error
    _lost.set(error)


def flush_output(code: str | int | None) -> str | int | None:
    """Flush the output. Return the exit code, which becomes that of storage if the disk is full.

    A closed pipe changes nothing, and an error keeps its own code.
    """
    lost = _lost.get()
    _lost.set(None)
    try:
        sys.stdout.flush()
    except OSError as error:
        lost = lost or error
        with suppress(OSError, ValueError):  # for the interpreter's last flush
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return report(lost) if lost and not code and not isinstance(lost, BrokenPipeError) else code


def free_frames(error: BaseException) -> None:
    """Drop the variables that an error and its causes keep alive, which may hold the memory to report it."""
    for cause in _causes(error):
        traceback.clear_frames(cause.__traceback__)


def report(error: BaseException) -> int:
    """Print an error in one line on stderr. Return the exit code."""
    message, code = _message_of(shortage(error) or error)
    rank = "" if isinstance(error, WorkerError) else rank_prefix()
    if not getattr(error, "reported", isinstance(error, KeyboardInterrupt) and not leads()):
        with suppress(OSError):
            sys.stderr.write(f"{rank}{visible(message)}\n")
    return code


def shortage(error: BaseException) -> OutOfMemory | None:
    """OutOfMemory if this error or one of its causes is a lack of memory, else None."""
    for cause in _causes(error):
        kind, text = type(cause).__name__, str(cause).lower()
        foreign = isinstance(cause, RuntimeError | ImportError) or kind == "PanicException"
        if (
            isinstance(cause, MemoryError)
            or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM)
            or (foreign and any(said in text for said in _SHORTAGE))
        ):
            return OutOfMemory()
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, its cause, the cause of that, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _message_of(error: BaseException) -> tuple[str, int]:
    """The message of an error, and its exit code."""
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted; {again()}", Interrupted.exit_code
    if isinstance(error, HighrankError):
        return str(error), error.exit_code
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        if not place and error.errno in _UNWRITABLE:  # errors of files name the file
            place, remedy = "standard output: ", f"; {_UNWRITABLE[error.errno]}"
            return f"{place}{error.strerror}{remedy}", StorageError.exit_code
        remedy = f"; {_OWNER}" if isinstance(error, PermissionError) else ""
        return f"{place}{error.strerror}{remedy}", StorageError.exit_code
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    name = type(error).__name__
    return f"internal error: {name} at {place}: {error} (run with --debug for the traceback)", 1
