"""Shared infrastructure of the command lines: commands with documented endings, processes, exit codes."""

import importlib
import math
import os
import re
import shlex
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from lm import __version__, numbers
from lm.config.named_data import NamedSplits, require_splits
from lm.config.settings import COMMAND_LINE, DEFAULT
from lm.console.output import FORMS, choose_form, markdown_wanted, note, show, utf8
from lm.console.usage import require_once, usage_error
from lm.disk.storage import require_place
from lm.ending import (
    EarlyStop,
    again,
    flush_output,
    free_frames,
    given_command,
    report,
    take_command,
)
from lm.errors import Interrupted, StorageError, require
from lm.launched import leads, several
from lm.parallel.group import announce
from lm.parallel.launch import launched, without_option
from lm.parallel.shards import shards_of

if TYPE_CHECKING:
    from lm.config.load import Resolved
    from lm.engine.loop import FitResult

TABLE_COLUMNS = 80  # least width of a help table, which cuts the names of options in narrower terminals
FLAGS = ("--debug", *FORMS)  # of every command; they may stand anywhere on the line


def check_data(data: NamedSplits, command: str, instead: str = "") -> None:
    """Raise DataError if a training text is missing, and warn if splits are the same file.

    The error names ``command``, which prepares a corpus, and ``instead``, which trains on any file.
    """
    warnings = require_splits(data, command, instead)
    note(*warnings if leads() else ())


def in_processes(count: int, shards: int = 0, instead: Mapping[str, Sequence[str]] | None = None) -> None:
    """Run the command again as several processes and exit with their code. Return if ``count`` is 1.

    ``instead`` has arguments by the option that they replace. ConfigError if ``count`` does not divide
    ``shards`` of a training.
    """
    if count > 1:
        shards_of(0, count, shards)
        package, *arguments = shlex.split(given_command())
        for option, others in (instead or {}).items():
            arguments = [*without_option(arguments, option), *others]
        raise typer.Exit(launched(package, arguments, count))


def on_rank_0(about: str) -> None:
    """Leave a command to rank 0 of several processes, with a note ``about`` the reason."""
    if not leads():
        raise typer.Exit
    if several():
        note(f"one process of several works: {about}")


def show_training(folder: Path, resolved: "Resolved[Any]", module: str) -> None:
    """Train a run with progress on stderr, and show how the training ended and its learning curve.

    ``module`` is imported for this. Its function ``train`` gets the config, the folder and a reporter.
    """
    if leads():
        require_place(folder)
        if {*resolved.provenance.values()} <= {DEFAULT, COMMAND_LINE}:
            note("warning: the config has no keys, so a model of the default sizes is trained")
    from lm.engine.progress import make_reporter

    train = importlib.import_module(module).train
    result: FitResult = train(resolved, folder, make_reporter(sys.stderr, folder / "tensorboard"))
    nll, minutes = (numbers.number(*one) for one in (("nll", result.best_nll), ("minutes", result.minutes)))
    updates = f"{result.step:,} update{'s' * (result.step != 1)}"
    best = f"best validation {nll} nats a token, at update {result.best_step:,}"
    show(
        f"{folder}: {result.reason}, after {updates} and {minutes} minutes; "
        f"{best if math.isfinite(result.best_nll) else 'no validation was finite'}",
        *shown_curve(folder),
    )


def shown_curve(run: Path) -> list[str]:
    """Learning curve of a run as text for the terminal, or as a block of code in Markdown."""
    from lm.console.curve import curve_lines
    from lm.runs.overview import learning_curve

    lines = curve_lines(learning_curve(run), unicode=utf8(), columns=shutil.get_terminal_size().columns)
    return ["```", *lines, "```"] if lines and markdown_wanted() else lines


class Commands(TyperGroup):
    """A group of commands with the documented exit codes for Ctrl-C and a closed pipe."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the command. Ends like :meth:`invoke`."""
        with _documented_endings():
            return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the first paragraph of the help of every command, whole."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, one.get_short_help_str(limit=1000)) for name, one in self.commands.items()]
            )

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that arguments name. Raise ConfigError for a repeated option with one value."""
        name, command, rest = super().resolve_command(ctx, args)
        if not isinstance(command, TyperGroup) and not ctx.resilient_parsing:
            require_once(command, ctx, rest)
        return name, command, rest

    def invoke(self, ctx: Any) -> object:
        """Run the command. Raise Interrupted for Ctrl-C, and exit silently if the output pipe is closed."""
        with _documented_endings():
            return super().invoke(ctx)


@contextmanager
def _documented_endings() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        ending = Interrupted(f"interrupted; {again()}")
        ending.reported = getattr(error, "reported", not leads())
        raise ending from None
    except BrokenPipeError:
        raise typer.Exit from None
    except SystemExit as ending:
        # rich's exit if the pipe of a help text is closed
        if isinstance(ending.__context__, BrokenPipeError):
            raise typer.Exit from None
        raise
    except Exception as error:
        if refusal := usage_error(error):
            raise refusal from None
        raise


def new_app(description: str) -> typer.Typer:
    """An empty command line with ``--version``, :data:`FLAGS` and shell completion.

    ``description`` may have words in ``[bold]``.
    """
    wide = shutil.get_terminal_size().columns >= TABLE_COLUMNS
    app = typer.Typer(
        cls=Commands,
        help=description if wide else re.sub(r"\[/?bold\]", "", description),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if wide else None,
    )

    @app.callback()
    def _(
        version: Annotated[
            bool,
            typer.Option(
                "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
            ),
        ] = False,
        debug: Annotated[
            bool,
            typer.Option(
                "--debug", help="Show the traceback of an error. Like the next two, it may stand anywhere."
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
    """Run a command line and exit; ``arguments`` default to those of the process.

    User errors are one line on stderr. So are our own bugs, unless ``--debug`` is given. Raises SystemExit
    with the codes of :mod:`lm.errors`.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    take_command([name, *without_option(given, "--processes")])  # which changes no result
    debug = "--debug" in given
    forms = [flag for flag in FORMS if flag in given]
    choose_form(forms[0] if forms else "")
    code: str | int | None = 0
    failure: BaseException | None = None
    try:
        require(len(forms) < 2, f"{' '.join(forms)}: two formats of the same tables; leave out one")
        code = _run(app, name, [argument for argument in given if argument not in FLAGS])
    except BaseException as error:  # a panic of a Rust library is not an Exception
        failure = error
    if failure is not None:
        if debug:
            traceback.print_exception(failure)
        free_frames(failure)
        announce(failure)
        code = report(failure)
    sys.exit(flush_output(code))


@cache
def command_of(app: typer.Typer) -> Any:
    """The command of an app, built once for a process that runs several commands."""
    return typer.main.get_command(app)


def _run(app: typer.Typer, name: str, arguments: list[str]) -> str | int | None:
    """Run a command line and return its exit code; the first signal is a KeyboardInterrupt."""
    early = EarlyStop()
    try:
        early.install()
        _require_working_folder()
        command_of(app)(args=arguments, prog_name=name)
    except SystemExit as ending:
        if isinstance(getattr(ending.__context__, "__cause__", None), KeyboardInterrupt):
            raise KeyboardInterrupt from None  # between the commands, where typer makes it 130 without a word
        return ending.code
    finally:
        early.uninstall()
    return 0


def _require_working_folder() -> None:
    """Raise StorageError if the working folder was deleted, which breaks libraries too."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise StorageError("the working folder was deleted; go to another one with cd") from None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"highrank {__version__}")
        raise typer.Exit
