"""A row of the matrix, and what its cases have in common."""

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from lm.errors import HighrankError

Case = Callable[[random.Random, int], int]  # raises what is wrong; returns how many faults there were
Lab = Callable[[Path], AbstractContextManager[Case]]  # what a row's cases share, in an empty folder


@dataclass(frozen=True)
class Row:
    """A kind of fault. ``night`` cases are demanded of a night.

    ``chunk`` of them are begun at once. ``limit`` says why fewer than demanded can be run, or none at all
    where there is no ``lab``.
    """

    name: str
    fault: str
    night: int
    lab: Lab | None = None
    chunk: int = 1
    limit: str = ""


def dice(row: str, seed: int, index: int) -> random.Random:
    """The randomness of one case."""
    return random.Random(f"{row}/{seed}/{index}")


def refused(action: Callable[[], object], kind: type[HighrankError] = HighrankError) -> str:
    """The message of the error that an action must end with: one printable line."""
    try:
        action()
    except kind as error:
        message = str(error)
        assert message.isprintable(), f"more than a line: {message!r}"
        return message
    raise AssertionError("it was accepted")
