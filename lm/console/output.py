"""Output of the command lines: tables and lines, notes on stderr, progress bars, results as JSON."""

import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from pydantic import BaseModel

from lm import __version__
from lm.console.tables import Table
from lm.disk.jsonfile import JSON, finite, write_json
from lm.ending import given_command, not_printed
from lm.errors import visible
from lm.launched import leads
from lm.libraries import installed_version
from lm.results import as_json
from lm.stop import deferred_signals

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import Console

FORMS = ("--markdown", "--csv")  # flags of formats of tables
_form = ContextVar("form", default="")  # the given one of them, or empty for a terminal


def choose_form(flag: str) -> None:
    """Choose the format in which :func:`show` prints: one of :data:`FORMS`, or empty for a terminal."""
    _form.set(flag)


def markdown_wanted() -> bool:
    """True if ``--markdown`` was given."""
    return _form.get() == "--markdown"


def csv_wanted() -> bool:
    """True if ``--csv`` was given."""
    return _form.get() == "--csv"


def utf8() -> bool:
    """True if stdout can show more than ASCII."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, if that is a terminal. Yields a callback with arguments (done, total)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from lm.engine.progress import TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeLeft())
    hidden = not (leads() and sys.stderr.isatty())
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden)
    task = bar.add_task(what, visible=False)

    def progress(done: int, total: int) -> None:
        with deferred_signals():  # the bar has locks and a thread
            if not bar.tasks[0].visible or done < bar.tasks[0].completed:  # a part with a pace of its own
                bar.start()
                bar.reset(task, begun=done)
            bar.update(task, completed=done, total=total, visible=done < total)
            if done >= total:
                bar.stop()

    try:
        yield progress
    finally:
        with deferred_signals():
            bar.stop()


def show(*parts: Table | str) -> None:
    """Print tables and lines in the format of ``--markdown`` or ``--csv``; pipes get no colours or wraps.

    In CSV, an empty line separates tables, and other lines go to stderr. Names are escaped by
    :func:`lm.errors.visible`. A full disk is reported at the end of the work. Only rank 0 prints.
    """
    for number, part in enumerate(parts if leads() else ()):
        try:
            _print(part, first=number == 0)
        except OSError as error:
            not_printed(error)


def log_line(text: str) -> None:
    """Print a line with the time of day on stderr, with unprintable characters escaped."""
    note(f"{time.strftime('%H:%M:%S')} {text}")


def note(*lines: str) -> None:
    """Print notes on stderr, one a line, with unprintable characters escaped."""
    for line in lines:
        typer.echo(visible(line), err=True)


def show_text(text: str) -> None:
    """Print the content of a file unchanged, regardless of the width of the terminal."""
    try:
        typer.echo(text, nl=False)
    except OSError as error:
        not_printed(error)


def _print(part: Table | str, first: bool) -> None:
    form = _form.get()
    if form == "--csv" and isinstance(part, Table):
        typer.echo(("" if first else "\n") + part.csv(), nl=False)
    elif form:
        typer.echo(visible(part) if isinstance(part, str) else part.markdown(), err=form == "--csv")
    else:
        console = _console()
        whole = isinstance(part, str) and not console.is_terminal
        shown = visible(part) if isinstance(part, str) else part
        console.print(shown, highlight=False, markup=False, emoji=False, soft_wrap=whole)


def _console() -> "Console":
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    console = PipeConsole()
    return console if console.is_terminal else PipeConsole(width=200)


def write_result(
    path: Path | None,
    result: "Mapping[str, Any] | DataclassInstance",
    *,
    config: BaseModel | None = None,
    seed: int | None = None,
) -> None:
    """Write a result as JSON with common fields: command, config, versions, seed, device.

    Keys of the result replace common ones. Does nothing without a path. Only rank 0 writes. Raises
    StorageError.
    """
    if path is None or not leads():
        return
    common: dict[str, JSON] = {
        "command": given_command(),
        "config": config.model_dump(mode="json") if config else None,
        "versions": versions(),
        "seed": seed,
        "device": platform.machine(),
    }
    found = result if isinstance(result, Mapping) else as_json(result)
    write_json(path, {name: finite(value) for name, value in (common | dict(found)).items()})


def versions() -> dict[str, JSON]:
    """Versions of Python, Highrank and the libraries that affect its numbers."""
    found: dict[str, JSON] = {"highrank": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "sacrebleu", "sentencepiece", "datasets"):
        if version := installed_version(name):
            found[name] = version
    return found
