"""Refusal of output files that would overwrite an input or a file of a run."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from lm.errors import ConfigError

_PARTS = {  # of a run, and of a prepared corpus
    "config.json", "vocabulary.json", "tokenizer.json", "tokenizer.model", "data.json", "metrics.jsonl",
    "timing.jsonl", "lock", "checkpoints", "evaluation", "dynamic", "analysis",
    "manifest.json", "report.json", "dropped.jsonl", "train", "valid", "test",
}  # fmt: skip


def require_apart(outputs: Iterable[Path | None], inputs: Iterable[str | Path | None]) -> None:
    """Raise ConfigError where a file to write is also to be read, or written twice, by whatever name."""
    sources, taken = [source for source in inputs if source], set()
    for output in filter(None, outputs):
        path = os.path.realpath(output)
        if path in taken:
            raise ConfigError(f"{output}: would hold two results; give each a file of its own")
        taken.add(path)
        for source in sources:
            with suppress(OSError, ValueError):  # one of them does not exist, or is no name of a file
                if os.path.samefile(output, source):
                    raise ConfigError(f"{output}: is read, too, and would be lost; write to another file")


def require_foreign(path: Path) -> None:
    """Raise ConfigError for a file that a run or a prepared corpus consists of."""
    real = Path(os.path.realpath(path))
    for folder in real.parents[:3]:
        is_ours = any((folder / name).is_file() for name in ("config.json", "manifest.json"))
        if is_ours and real.relative_to(folder).parts[0] in _PARTS and os.path.lexists(path):
            raise ConfigError(f"{path}: belongs to {folder}; write to another file")
