"""What a run is made of, and what of it may change: shared by everything that trains or opens a run."""

from pathlib import Path

from lm.errors import StorageError
from lm.lines import visible
from lm.storage import JSON, read_json, write_json
from lm.text import RESTORE, Codec

DATA, CODEC_HASH = "data.json", "codec_sha256"

RESUMABLE = frozenset(
    f"train.{key}"
    for key in (
        "max_steps", "max_epochs", "max_minutes", "patience", "stop_trigger", "checkpoint_every",
        "checkpoint_minutes", "keep_best", "keep_last",
    )
) | {"about", "extends", "data.test"}  # fmt: skip
"""Keys that may change when a run is resumed, whatever it trains."""


def changed_inputs(run: Path, hashes: dict[str, str]) -> list[str]:
    """Remembers the inputs of a new run; of an older one, the names of those that are not what they were."""
    path = run / DATA
    if not path.is_file():
        write_json(path, dict[str, JSON](hashes))
        return []
    saved = read_json(path)
    return [name for name, value in hashes.items() if not isinstance(saved, dict) or saved.get(name) != value]


def codec_of(run: Path) -> Codec:
    """The codec that a run was trained with; StorageError where there is none, or another."""
    codec = Codec.load(run)
    if (run / DATA).is_file():
        saved = read_json(run / DATA)
        if not isinstance(saved, dict) or saved.get(CODEC_HASH) != codec.fingerprint:
            raise StorageError(
                f"{visible(run)}: vocabulary.json or tokenizer.json is not the run's own; {RESTORE}"
            )
    return codec
