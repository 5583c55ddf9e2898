"""Errors of scripts: one line and an exit code."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lm.errors import HighrankError


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Within, what the user can act on ends the script with one line and its exit code."""
    try:
        yield
    except HighrankError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
