"""Readers of run folders for scripts, which exit with an error if a file is unreadable."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lm.disk.storage import parse_json, read_file
from lm.errors import HighrankError


def records(path: Path) -> list[Any]:
    """The lines of a log; StorageError where one is no JSON, or the log cannot be read."""
    return [parse_json(line, path) for line in read_file(path, limit=1 << 30).splitlines()]


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Within, what the user can act on ends the script with one line and its exit code."""
    try:
        yield
    except HighrankError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
