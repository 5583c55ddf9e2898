"""A store of small commits, to test checkpoints on."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lm.disk.jsonfile import JSON, canonical_json
from lm.errors import StorageError
from lm.runs.checkpoint import CheckpointStore, Commit


def groups_of(step: int) -> dict[str, dict[str, Tensor]]:
    """Small tensors that differ from step to step."""
    generator = torch.Generator().manual_seed(step)
    return {
        "model": {
            "weight": torch.randn(3, 4, generator=generator),
            "bias": torch.randn(3, generator=generator),
        },
        "rng": {"torch": generator.get_state()[:32]},
        "task": {},
    }


def save(store: CheckpointStore, step: int, best: Sequence[int] | None = None) -> Commit:
    """A commit, of a training with these best steps, or of none."""
    progress: dict[str, JSON] = {} if best is None else {"progress": {"best": [[1.0, one] for one in best]}}
    return store.commit(step, groups_of(step), {"step": step, "lr": 0.1} | progress, {"seconds": step + 0.5})


def holds(commit: Commit, step: int) -> bool:
    expected = groups_of(step)["model"]
    found = commit.tensors("model")
    return commit.step == step and all(torch.equal(found[name], expected[name]) for name in expected)


def two_commits(folder: Path) -> CheckpointStore:
    """A store that has committed steps 1 and 2."""
    store = CheckpointStore(folder / "checkpoints")
    save(store, 1)
    save(store, 2)
    return store


def one_line(error: pytest.ExceptionInfo[StorageError], *words: str) -> None:
    message = str(error.value)
    assert message.isprintable(), message
    for word in words:
        assert word in message


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    bit %= 8 * len(data)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def forge(folder: Path, files: dict[str, bytes], changes: dict[str, object] | None = None) -> None:
    """A commit whose hashes are right, as a malicious author would make them."""
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    records = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()
    }
    body = {"format": 1, "step": 5, "files": records, "facts": {}} | (changes or {})
    seal = hashlib.sha256(canonical_json(body)).hexdigest()
    (folder / "manifest.json").write_bytes(canonical_json(body | {"sha256": seal}))


def header(value: object, length: int | None = None) -> bytes:
    """The beginning of a safetensors file; ``length`` where it lies about its size."""
    text = json.dumps(value).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text
