"""Zhao et al.'s pickle, the one place where a pickle is read, by a process that can do nothing but read it.

The pickle is a dictionary ``train``/``valid``/``test`` → list of dialogs of plain Python values. The process
that reads it has limited memory and time, allows no class or function at all, and answers with JSON lines.
"""

import io
import json
import math
import os
import pickle
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from dialog.corpora.readers import read_zhao_objects
from dialog.utterance import SPLITS, Dialog
from lm.disk.regular import open_regular
from lm.errors import DataError, visible
from lm.text.lines import InputLog

MAX_SIZE = 1 << 30  # bytes
_MEMORY = 1 << 29, 10  # bytes, and bytes for each of the file: objects are larger than what is pickled
_SECONDS = 4, 3  # of CPU time, and for each MB; a tenth of that is usual
_REFUSED = 3  # exit code of the reading process


class _PlainUnpickler(pickle.Unpickler):
    """Builds dictionaries, lists, tuples, strings and numbers; refuses to look up anything else."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, and data needs no code")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside the file")


def read_pickle(path: Path, log: InputLog) -> dict[str, list[Dialog]]:
    """Dialogs of every split; DataError for a pickle that asks for code, is damaged or of another layout."""
    name = visible(path)
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > MAX_SIZE:
            raise DataError(f"{name}: larger than {MAX_SIZE >> 30} GiB; convert it to JSONL")
        command = [sys.executable, "-P", "-m", "dialog.corpora.unpickle"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(_import_path())}
        done = subprocess.run(command, stdin=stream, capture_output=True, env=environment, check=False)
    if done.returncode == _REFUSED:
        raise DataError(
            f"{name}: refused: {visible(done.stderr.decode(errors='replace'))}; use the JSONL release"
        )
    if done.returncode:
        memory, seconds = _limits(size)
        raise DataError(
            f"{name}: refused: needs more than {seconds} s or {memory >> 20:,} MiB of memory;"
            " use the JSONL release"
        )
    splits: dict[str, list[Any]] = {split: [] for split in SPLITS}
    for line in done.stdout.splitlines():
        split, value = json.loads(line)
        splits[split].append(value)
    return {
        split: read_zhao_objects(enumerate(values, 1), f"{path}/{split}", log)
        for split, values in splits.items()
        if values
    }


def _import_path() -> list[str]:
    """Where the child may import from: not the working folder, where unpacked data lies."""
    ours = str(Path(__file__).resolve().parent.parent.parent)
    return [ours, *(path for path in sys.path if os.path.isabs(path) and path not in (ours, os.getcwd()))]


def _limits(size: int) -> tuple[int, int]:
    """Bytes of memory and seconds that reading a pickle of ``size`` bytes may take."""
    return _MEMORY[0] + _MEMORY[1] * size, _SECONDS[0] + _SECONDS[1] * size // 1_000_000


def _plain_dialogs(value: Any, limit: int) -> Iterator[str]:
    """JSON lines ``[split, dialog]``; ValueError for another layout, or where sharing makes it explode."""
    if not isinstance(value, dict) or not value or not set(value) <= set(SPLITS):
        raise ValueError("it is not a dictionary of train, valid and test")
    for split, dialogs in value.items():
        if not isinstance(dialogs, list):
            raise ValueError(f"{split} is not a list of dialogs")
        for dialog in dialogs:
            if not isinstance(dialog, dict) or not isinstance(dialog.get("utts"), list):
                raise ValueError(f"a dialog of {split} has no list of utts")
            kept = {key: dialog[key] for key in ("id", "topic") if key in dialog}
            for item in (*dialog["utts"], *kept.values()):
                limit -= _cost(item)
            if limit < 0:
                raise ValueError("it expands to more than sixteen times its size")
            yield json.dumps([split, {**kept, "utts": dialog["utts"]}])


def _cost(item: Any, depth: int = 0) -> int:
    """Characters of a plain value, about; ValueError for one that is no utterance."""
    if isinstance(item, str):
        return len(item) + 1
    if item is None or isinstance(item, int | float):
        return 8
    if not isinstance(item, list | tuple) or depth > 2 or len(item) > 16:
        raise ValueError("an utterance is not [speaker, text, [act, sentiment]]")
    return 1 + sum(_cost(part, depth + 1) for part in item)


def _main() -> int:
    """Read a pickle on standard input, write JSON lines; the reason for a refusal goes to standard error."""
    data = sys.stdin.buffer.read()
    memory, seconds = _limits(len(data))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    used = math.ceil(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, used + seconds))
    try:
        value = _PlainUnpickler(io.BytesIO(data), encoding="utf-8").load()
        for line in _plain_dialogs(value, 16 * len(data)):
            sys.stdout.write(f"{line}\n")
    except MemoryError:
        return 1
    except Exception as error:  # whatever a damaged pickle does to the unpickler
        sys.stderr.buffer.write(ascii(" ".join(str(error).split()) or type(error).__name__).encode())
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_main())
