"""Refusal of output files that would overwrite an input, a file of a run, or a file of the user."""

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from lm.disk.regular import open_file
from lm.disk.storage import require_writable
from lm.errors import ConfigError
from lm.runs.inputs import FILES

Kind = Callable[[BinaryIO], bool]  # of a result: True for a file of this kind; ValueError also means False
_LIMIT = 1 << 30  # bytes that are read of a result

_PARTS = {  # of a run, and of a prepared corpus
    *FILES, "metrics.jsonl", "timing.jsonl", "lock", "checkpoints", "evaluation", "dynamic", "analysis",
    "manifest.json", "report.json", "dropped.jsonl", "train", "valid", "test",
}  # fmt: skip


def require_apart(outputs: Iterable[Path | None], inputs: Iterable[str | Path | None]) -> None:
    """Raise ConfigError if an output is also an input or another output, under any name."""
    sources, taken = [source for source in inputs if source], set()
    for output in filter(None, outputs):
        path = os.path.realpath(output)
        if path in taken:
            raise ConfigError(f"{output}: is the file of two outputs; choose a different file for each")
        taken.add(path)
        for source in sources:
            with suppress(OSError, ValueError):  # one of them does not exist, or is not a file name
                if os.path.samefile(output, source):
                    raise ConfigError(
                        f"{output}: is also an input and would be overwritten; choose another file"
                    )


def require_output(output: Path | None, inputs: Iterable[str | Path | None]) -> None:
    """Raise ConfigError or StorageError for an output that is an input or cannot be written."""
    require_apart([output], inputs)
    if output is not None:
        require_writable(output)


def require_foreign(path: Path) -> None:
    """Raise ConfigError for a file that is part of a run or a prepared corpus, or new in a folder of it."""
    real = Path(os.path.realpath(path))
    for folder in real.parents[:3]:
        is_ours = any(os.path.isfile(folder / name) for name in ("config.json", "manifest.json"))
        part, *within = real.relative_to(folder).parts
        if is_ours and part in _PARTS and (within or os.path.lexists(path)):
            raise ConfigError(f"{path}: belongs to {folder}; write to another file")


def require_earlier(path: Path, kind: Kind) -> None:
    """Raise ConfigError for an existing file that is neither empty nor an earlier result of a kind."""
    if not os.path.lexists(path):
        return
    known = False
    with suppress(OSError, ValueError, RecursionError), open_file(path) as file:
        known = not os.fstat(file.fileno()).st_size or kind(file)
    if not known:
        raise ConfigError(f"{path}: exists and is no result of this command; choose another file")


def rows_with(*keys: str, opening: bytes = b"") -> Kind:
    """The kind of files with a JSON object per line, with ``keys`` in the first line after ``opening``."""

    def is_rows(file: BinaryIO) -> bool:
        opened = file.read(len(opening)) == opening
        row = json.loads(file.readline(_LIMIT).rstrip(b",\n"))
        return opened and isinstance(row, dict) and row.keys() >= set(keys)

    return is_rows


def is_json_result(file: BinaryIO) -> bool:
    """The kind of files of ``--json``."""
    result = json.loads(file.read(_LIMIT))
    return isinstance(result, dict) and result.keys() >= {"command", "versions"}


def is_report(file: BinaryIO) -> bool:
    """The kind of files of ``report``."""
    return b'data-by="highrank-report"' in file.read(100)


def is_picture(file: BinaryIO) -> bool:
    """The kind of PNG and SVG files."""
    return file.read(5) in (b"\x89PNG\r", b"<?xml")
