"""Command lines of scripts: options, and errors in one line."""

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from lm.ending import flush_output, report
from lm.errors import HighrankError

CLOSED_PIPE = 141  # exit code, as shells have it


class Options(argparse.ArgumentParser):
    """Options of a script, whose help begins with its docstring. A mistake ends it with one line and 2."""

    def __init__(self, docstring: str | None) -> None:
        super().__init__(
            description=docstring,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Exit with a message in one line."""
        self.exit(2, f"{message}; --help lists the options\n")


def run_script(main: Callable[[], object]) -> NoReturn:
    """Run a script and exit: one line for an error, none for a closed pipe, whose code is that of shells."""
    code: str | int | None = 0
    try:
        main()
    except SystemExit as ending:
        code = ending.code
    except BrokenPipeError:
        code = CLOSED_PIPE
    except (HighrankError, OSError, KeyboardInterrupt) as error:
        code = report(error)
    sys.exit(flush_output(code))
