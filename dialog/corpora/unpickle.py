"""Sandboxed reader of Zhao et al.'s pickle, the only pickle that the program reads.

The pickle is a dictionary ``train``/``valid``/``test`` → list of dialogs of plain Python values. A child
process with limited memory and time reads it, allows no class or function, and returns JSON lines.
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

from dialog.corpora.readers import ZHAO, collect
from dialog.utterance import Dialog
from lm.config.named_data import SPLITS
from lm.disk.regular import open_regular
from lm.errors import DataError
from lm.launched import module_command, module_environment
from lm.text.lines import InputLog

MAX_PICKLE = 1 << 30  # bytes
_MEMORY = 1 << 29, 10  # bytes, and bytes per byte of the file: objects are larger than their pickle
_SECONDS = 4, 3  # of CPU time, and per MB; about a tenth is typical
_REFUSED = 3  # exit code of the reading process


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler of dictionaries, lists, tuples, strings and numbers that rejects everything else."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, but data needs no code")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside the file")


def read_pickle(path: Path, log: InputLog) -> dict[str, list[Dialog]]:
    """Read the dialogs of every split.

    Raises DataError for a pickle that asks for code, is damaged, too large or of another layout.
    """
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > MAX_PICKLE:
            raise DataError(f"{path}: larger than {MAX_PICKLE >> 30} GiB; convert it to JSONL")
        memory, seconds = _limits(size)
        command = module_command("dialog.corpora.unpickle", str(memory), str(seconds))
        done = subprocess.run(
            command, stdin=stream, capture_output=True, env=module_environment(), check=False
        )
    if done.returncode == _REFUSED:
        raise DataError(f"{path}: refused: {done.stderr.decode(errors='replace')}; use the JSONL release")
    if done.returncode:
        raise DataError(
            f"{path}: refused: needs more than {seconds} s or {memory >> 20:,} MiB of memory;"
            " use the JSONL release"
        )
    splits: dict[str, list[Any]] = {split: [] for split in SPLITS}
    for line in done.stdout.splitlines():
        split, value = json.loads(line)
        splits[split].append(value)
    if not any(splits.values()):
        raise DataError(f"{path}: holds no dialogs; name another file")
    return {
        split: collect(ZHAO.made(enumerate(values, 1), f"{path}/{split}", log), f"{path}/{split}", log)
        for split, values in splits.items()
        if values
    }


def _limits(size: int) -> tuple[int, int]:
    """Limits of memory (bytes) and CPU time (seconds) for reading a pickle of ``size`` bytes."""
    return _MEMORY[0] + _MEMORY[1] * size, _SECONDS[0] + _SECONDS[1] * size // 1_000_000


def _plain_dialogs(value: Any, limit: int) -> Iterator[str]:
    """Yield JSON lines ``[split, dialog]``.

    Raises ValueError for another layout, or if shared objects expand beyond ``limit`` characters.
    """
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
    """Approximate characters of a plain value. Raises ValueError if it is not an utterance."""
    if isinstance(item, str):
        return len(item) + 1
    if item is None or isinstance(item, int | float):
        return 8
    if not isinstance(item, list | tuple) or depth > 2 or len(item) > 16:
        raise ValueError("an utterance is not [speaker, text, [act, sentiment]]")
    return 1 + sum(_cost(part, depth + 1) for part in item)


def _main(memory: int, seconds: int) -> int:
    """Convert a pickle on standard input to JSON lines. The reason of a refusal goes to standard error."""
    data = sys.stdin.buffer.read()
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    used = math.ceil(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, used + seconds))
    try:
        value = _PlainUnpickler(io.BytesIO(data), encoding="utf-8").load()
        for line in _plain_dialogs(value, 16 * len(data)):
            sys.stdout.write(f"{line}\n")
    except MemoryError:
        return 1
    except Exception as error:  # a damaged pickle may raise anything in the unpickler
        sys.stderr.buffer.write(ascii(" ".join(str(error).split()) or type(error).__name__).encode())
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_main(*map(int, sys.argv[1:])))
