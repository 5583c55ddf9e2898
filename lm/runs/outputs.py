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


def require_foreign(path: Path) -> None:
    """Raise ConfigError for a file that is part of a run or a prepared corpus."""
    real = Path(os.path.realpath(path))
    for folder in real.parents[:3]:
        is_ours = any((folder / name).is_file() for name in ("config.json", "manifest.json"))
        if is_ours and real.relative_to(folder).parts[0] in _PARTS and os.path.lexists(path):
            raise ConfigError(f"{path}: belongs to {folder}; write to another file")
