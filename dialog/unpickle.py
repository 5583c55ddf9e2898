"""Zhao et al.'s pickle, the one place where a pickle is read, by a process that can do nothing but read it.

The pickle is a dictionary ``train``/``valid``/``test`` → list of dialogs of plain Python values. The process
that reads it has limited memory and time, allows no class or function at all, and answers with JSON lines.
"""

import io
import json
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from dialog.readers import read_zhao_objects
from dialog.utterance import SPLITS, Dialog
from lm.errors import DataError
from lm.lines import InputLog, open_regular, visible

MAX_SIZE = 1 << 30  # bytes
_MEMORY_PER_BYTE = 40  # of the file; Python's objects are larger than what they are pickled as
_SECONDS = 600
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
        command = [sys.executable, "-P", "-m", "dialog.unpickle"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(_import_path())}
        done = subprocess.run(command, stdin=stream, capture_output=True, env=environment, check=False)
    if done.returncode == _REFUSED:
        raise DataError(
            f"{name}: refused: {visible(done.stderr.decode(errors='replace'))}; use the JSONL release"
        )
    if done.returncode:
        raise DataError(f"{name}: needs more than {_SECONDS} s or too much memory; use the JSONL release")
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
    ours = str(Path(__file__).resolve().parent.parent)
    return [ours, *(path for path in sys.path if os.path.isabs(path) and path not in (ours, os.getcwd()))]


def _plain_dialogs(value: Any, limit: int) -> list[str]:
    """JSON lines ``[split, dialog]``; ValueError for another layout, or where sharing makes it explode."""
    if not isinstance(value, dict) or not value or not set(value) <= set(SPLITS):
        raise ValueError("it is not a dictionary of train, valid and test")
    lines = []
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
            lines.append(json.dumps([split, {**kept, "utts": dialog["utts"]}]))
    return lines


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
    memory = (1 << 29) + _MEMORY_PER_BYTE * len(data)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    try:
        value = _PlainUnpickler(io.BytesIO(data), encoding="utf-8").load()
        lines = _plain_dialogs(value, 16 * len(data))
    except MemoryError:
        return 1
    except Exception as error:  # whatever a damaged pickle does to the unpickler
        sys.stderr.buffer.write(ascii(" ".join(str(error).split()) or type(error).__name__).encode())
        return _REFUSED
    sys.stdout.buffer.write("\n".join(lines).encode())
    return 0


if __name__ == "__main__":
    sys.exit(_main())
