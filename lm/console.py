"""What the command lines share: exit codes, one-line errors, tables and the JSON they write."""

import errno
import importlib.metadata
import math
import os
import platform
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from pydantic import BaseModel
from typer.core import TyperGroup

from lm import __version__, numbers
from lm.errors import HighrankError, Interrupted, StorageError
from lm.lines import visible
from lm.named_data import NamedSplits, require_splits
from lm.storage import JSON, finite, require_foreign, require_writable, write_json
from lm.tables import Table

if TYPE_CHECKING:
    from rich.console import Console

    from lm.train import FitResult

_command = ContextVar("command", default="")
_form = ContextVar("form", default="")  # of tables: --markdown, --csv, or nothing for a terminal
FLAGS = ("--debug", "--markdown", "--csv")  # of every command; they may stand anywhere on the line
_NO_ROOM, _ELSEWHERE = "free some, or write elsewhere", "write elsewhere"
_UNWRITABLE = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EFBIG: _ELSEWHERE,
    errno.EIO: _ELSEWHERE,
}

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a key, as in --set train.seed=2; may be repeated."
    ),
]


def writable(path: Path | None) -> Path | None:
    """The callback of options that name a file to write: refuses one before the work that it would lose."""
    if path is not None:
        require_foreign(path)
        require_writable(path)
    return path


JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Also write the result to FILE as one JSON object, in place of what is there.",
        callback=writable,
    ),
]


RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
Checkpoint = Annotated[
    str, typer.Option(metavar="WHICH", help="best, last, average (of the best) or step-N.")
]


def check_data(data: NamedSplits, command: str) -> None:
    """Raise DataError where the text of a training is not there, and warn where its splits are one file."""
    for warning in require_splits(data, command):
        typer.echo(warning, err=True)


def show_training(folder: Path, result: "FitResult") -> None:
    """How a training ended, in one line, and its learning curve."""
    from lm.overview import curve_lines, validations

    nll, minutes = (numbers.number(*told) for told in (("nll", result.best_nll), ("minutes", result.minutes)))
    best = f"best validation {nll} nats a token, at update {result.best_step:,}"
    show(
        f"{folder}: {result.reason}, after {result.step:,} updates and {minutes} minutes; "
        f"{best if math.isfinite(result.best_nll) else 'no validation was finite'}",
        *curve_lines(validations(folder), unicode=utf8()),
    )


def utf8() -> bool:
    """Whether stdout can show more than ASCII."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


class Commands(TyperGroup):
    """A group of commands in which Ctrl-C and a closed pipe end the program the documented way."""

    def invoke(self, ctx: Any) -> object:
        """Run the command; raises Interrupted for Ctrl-C, and ends quietly when nobody reads the output."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; run the same command again to start over or to resume") from None
        except BrokenPipeError:
            raise typer.Exit from None


def new_app(description: str) -> typer.Typer:
    """An empty command line with ``--version``, :data:`FLAGS` and shell completion."""
    app = typer.Typer(
        cls=Commands,
        help=description,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )

    @app.callback()
    def _(
        version: Annotated[
            bool,
            typer.Option(
                "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
            ),
        ] = False,
        debug: Annotated[
            bool,
            typer.Option(
                "--debug", help="Show the traceback of an error. This and the next two may stand anywhere."
            ),
        ] = False,
        markdown: Annotated[bool, typer.Option("--markdown", help="Tables as Markdown.")] = False,
        csv: Annotated[
            bool, typer.Option("--csv", help="Tables as CSV, numbers as measured; other lines go to stderr.")
        ] = False,
    ) -> None:
        pass

    return app


def run_app(app: typer.Typer, name: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line to its exit code; ``arguments`` default to those of the process.

    Errors that the user can act on are one line on stderr, and so are our own bugs unless ``--debug`` is
    given. Raises SystemExit, with the codes of :mod:`lm.errors`.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    debug = "--debug" in given
    _form.set(next((flag for flag in FLAGS[1:] if flag in given), ""))
    _command.set(shlex.join([name, *given]))
    signals = _like_ctrl_c()
    try:
        app(args=[argument for argument in given if argument not in FLAGS], prog_name=name)
        code: str | int | None = 0
    except SystemExit as ending:
        code = ending.code
    except KeyboardInterrupt:
        code = Interrupted.exit_code
    except Exception as error:
        if debug:
            traceback.print_exc()
        code = _report(error)
    finally:
        for number, handler in signals.items():
            signal.signal(number, handler)
    sys.exit(_flush() or code)


def _like_ctrl_c() -> dict[signal.Signals, Any]:
    """Let SIGTERM and SIGHUP end the program as Ctrl-C does; returns the handlers of before."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    wanted = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in wanted}
    changed = {number: handler for number, handler in before.items() if handler is signal.SIG_DFL}
    for number in changed:
        signal.signal(number, signal.default_int_handler)
    return changed


def _flush() -> int:
    """Write out what was printed; returns an exit code where that fails, 0 where the reader is gone."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's last flush
        return 0 if isinstance(error, BrokenPipeError) else _report(error)
    return 0


def _report(error: Exception) -> int:
    """Say what went wrong in one line on stderr; returns the exit code."""
    if isinstance(error, HighrankError):
        message, code = str(error), error.exit_code
    elif isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        message, code = f"{place}{error.strerror}", StorageError.exit_code
        if not place and error.errno in _UNWRITABLE:  # whoever writes a file names it
            message = f"standard output: {error.strerror}; {_UNWRITABLE[error.errno]}"
    elif type(error).__name__ in ("MemoryError", "OutOfMemoryError"):  # the second is torch's
        message, code = "out of memory: lower train.batch_size, the sizes of the model, or the beam", 1
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        message = (
            f"internal error: {type(error).__name__} at {place}: {error} (run with --debug for the traceback)"
        )
        code = 1
    typer.echo(visible(message), err=True)
    return code


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, where that is a terminal, for a loop that tells (done, total)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from lm.progress import TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeLeft())
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    task = bar.add_task(what, visible=False)

    def progress(done: int, total: int) -> None:
        if not bar.live.is_started:
            bar.start()
        bar.update(task, completed=done, total=total, visible=done < total)
        if done >= total:
            bar.stop()

    try:
        yield progress
    finally:
        bar.stop()


def show(*parts: Table | str) -> None:
    """Print tables and lines, as ``--markdown`` or ``--csv`` asks; a pipe gets lines whole, without colours.

    Where CSV is asked for, tables stand apart by an empty line, and other lines go to stderr.
    """
    form, console = _form.get(), _console()
    for number, part in enumerate(parts):
        if form == "--csv" and isinstance(part, Table):
            typer.echo(("\n" if number else "") + part.csv(), nl=False)
        elif form:
            typer.echo(visible(part) if isinstance(part, str) else part.markdown(), err=form == "--csv")
        else:
            whole = isinstance(part, str) and not console.is_terminal
            console.print(part, highlight=False, markup=False, soft_wrap=whole)


def _console() -> "Console":
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    console = PipeConsole()
    return console if console.is_terminal else PipeConsole(width=200)


def write_result(
    path: Path | None, result: Mapping[str, Any], *, config: BaseModel | None = None, seed: int | None = None
) -> None:
    """Write a measured result as JSON with the fields that all have: command, config, versions, seed, device.

    ``device`` is the result's own where it has one. Does nothing without a path. Raises StorageError.
    """
    if path is None:
        return
    common: dict[str, JSON] = {
        "command": _command.get(),
        "config": config.model_dump(mode="json") if config else None,
        "versions": versions(),
        "seed": seed,
        "device": platform.machine(),
    }
    write_json(path, {name: finite(value) for name, value in (common | dict(result)).items()})


def versions() -> dict[str, JSON]:
    """Versions of Python, of Highrank and of the libraries that its numbers depend on."""
    found: dict[str, JSON] = {"highrank": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "nltk", "sacrebleu", "sentencepiece", "datasets"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"highrank {__version__}")
        raise typer.Exit
