"""Tasks for worker processes, which import this module."""

import os
import signal
import sys
import time
from pathlib import Path

from lm.errors import DataError, OutOfMemory


def leave(path: Path, seconds: float = 0.0) -> None:
    """Write a file with the heavy libraries that preparation has loaded."""
    time.sleep(seconds)
    import dialog.corpora.prepare
    import lm.language.corpora.prepare

    assert dialog.corpora.prepare
    assert lm.language.corpora.prepare
    path.write_text(" ".join({"torch", "datasets", "pyarrow", "typer", "pydantic"} & sys.modules.keys()))


def refuse(path: Path, seconds: float = 0.0) -> None:
    time.sleep(seconds)
    raise DataError(f"{path}: bad; correct it")


def exhaust(path: Path, seconds: float = 0.0) -> None:
    raise OutOfMemory


class UnsendableError(Exception):
    """An error that cannot be pickled and made again."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__("odd")


def err(path: Path, seconds: float = 0.0) -> None:
    raise UnsendableError(1, 2)


def die(path: Path, seconds: float = 0.0) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def run(kind: str, path: Path, seconds: float) -> None:
    {"leave": leave, "refuse": refuse, "exhaust": exhaust, "err": err, "die": die}[kind](path, seconds)
