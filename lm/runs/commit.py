"""One checkpoint on disk: a folder that is valid if its manifest and every hash in it hold.

The folder ``step-00000120`` has one safetensors file per group of tensors, ``state.json``, and
``manifest.json`` with the size and SHA-256 of each. Hashes detect damage, not malice. A hostile file
is harmless because safetensors and JSON hold no code. Links are not followed, and no name in a manifest leads
out of the folder. The module does not import torch.
"""

import hashlib
import mmap
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from lm.disk.jsonfile import JSON, canonical_json, parse_json, sealed
from lm.disk.storage import Part, read_file, sha256_file, storage_errors, write_new, write_parts
from lm.disk.tensors import tensor_file
from lm.errors import StorageError

if TYPE_CHECKING:
    from torch import Tensor

COMMIT_FORMAT = 1
MANIFEST, STATE, TENSORS = "manifest.json", "state.json", ".safetensors"
STEP_FOLDER = re.compile(r"step-(\d{8,15})(\.old)?", re.ASCII)
_GROUP = r"[a-z][a-z0-9_]{0,40}"
_JSON_LIMIT = 64 << 20  # largest plausible size of a manifest or state in bytes
_HEADER_LIMIT = 16 << 20  # largest safetensors header in bytes; a tensor takes about 100

CommitFile = Annotated[str, StringConstraints(pattern=rf"^({_GROUP}\.safetensors|state\.json)$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class FileRecord(BaseModel):
    """Size in bytes and SHA-256 of a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    size: int = Field(ge=0, lt=1 << 50)
    sha256: Sha256


class Manifest(BaseModel):
    """Contents of ``manifest.json``, canonical JSON; ``sha256`` is the hash of the other fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    format: Literal[1]
    step: int = Field(ge=0)
    files: dict[CommitFile, FileRecord]
    facts: dict[str, Any]
    sha256: Sha256


@dataclass(frozen=True)
class CommitReport:
    """Result of a check of one commit: its hash, its size, and its problem, if any."""

    step: int
    state_sha256: str | None
    bytes: int
    problem: str | None


@dataclass(frozen=True)
class Commit:
    """A checkpoint whose files are verified on reading, or before they are used.

    ``state`` is deterministic and part of ``state_sha256``; ``facts`` (elapsed time, versions) are not.
    """

    step: int
    path: Path
    state: Mapping[str, Any]
    facts: Mapping[str, Any]
    files: Mapping[str, FileRecord] = field(repr=False)

    @property
    def best(self) -> list[int] | None:
        """Steps of the best commits at this one, best first; None unless a training wrote it.

        Raises StorageError if they are no list of pairs of a loss and a step.
        """
        if "progress" not in self.state:
            return None
        try:
            steps = [step for _, step in self.state["progress"]["best"]]
        except (LookupError, TypeError, ValueError):
            steps = [None]
        if any(type(step) is not int or step < 0 for step in steps):
            raise StorageError(f"{self.path / STATE}: lists no best checkpoints; the checkpoint is foreign")
        return steps

    @classmethod
    def read(cls, path: Path, *, tensors: bool = True) -> "Commit":
        """Verify a commit folder; StorageError names what is missing, damaged or foreign.

        Without ``tensors``, files of tensors are verified only when they are used.
        """
        with storage_errors(path):
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise StorageError(f"{path}: not a folder, so no checkpoint")
        manifest = _read_manifest(path / MANIFEST)
        match = STEP_FOLDER.fullmatch(path.name)
        if match is None or int(match[1]) != manifest.step:
            raise StorageError(f"{path}: holds step {manifest.step}; the folder was renamed")
        if STATE not in manifest.files:
            raise StorageError(f"{path / MANIFEST}: lists no {STATE}; the checkpoint is foreign")
        for name, record in manifest.files.items():
            if tensors and name != STATE:
                _verify(path / name, record)
        state = parse_json(_read_verified(path / STATE, manifest.files[STATE]), path / STATE)
        if not isinstance(state, dict):
            raise StorageError(f"{path / STATE}: not a JSON object; the checkpoint is foreign")
        return cls(manifest.step, path, state, manifest.facts, manifest.files)

    @property
    def groups(self) -> list[str]:
        """Sorted names of the groups of tensors, except empty ones."""
        return sorted(name.removesuffix(TENSORS) for name in self.files if name != STATE)

    @property
    def state_sha256(self) -> str:
        """Hash that is equal exactly when step, tensors and state are bit-identical."""
        return _state_sha256(self.step, {name: record.sha256 for name, record in self.files.items()})

    @property
    def size(self) -> int:
        """Size of all files except the manifest, in bytes."""
        return sum(record.size for record in self.files.values())

    def tensors(self, group: str) -> dict[str, "Tensor"]:
        """Tensors of a group on the CPU, verified while reading; {} for an empty group."""
        name = group + TENSORS
        if name not in self.files:
            return {}
        return _deserialise(_read_verified(self.path / name, self.files[name]), self.path / name)

    def inference_tensors(self) -> dict[str, "Tensor"]:
        """Weights for inference: the averages where they exist, otherwise the model's weights."""
        weights = self.tensors("model") | self.tensors("average")
        if not weights:
            raise StorageError(f"{self.path}: holds no weights; choose another checkpoint")
        return weights


def weights_of(folder: Path) -> dict[str, "Tensor"]:
    """:meth:`Commit.inference_tensors` of a folder, which verifies these and the state, and nothing else."""
    return Commit.read(folder, tensors=False).inference_tensors()


def write_commit(
    folder: Path,
    step: int,
    groups: Mapping[str, Mapping[str, "Tensor"]],
    state: Mapping[str, JSON],
    facts: Mapping[str, JSON],
) -> str:
    """Write the files of a commit into an empty folder, the manifest last; returns the ``state_sha256``.

    Every file is synced before the next one starts. Only one tensor at a time is copied.
    """
    files: dict[str, JSON] = {}
    hashes: dict[str, str] = {}
    for name, size, parts in _files(groups, state):
        hashes[name] = write_parts(folder / name, size, parts)
        files[name] = {"size": size, "sha256": hashes[name]}
    body: dict[str, JSON] = {"format": COMMIT_FORMAT, "step": step, "files": files, "facts": facts}
    write_new(folder / MANIFEST, canonical_json(sealed(body)))
    return _state_sha256(step, hashes)


def require_sizes(folder: Path) -> None:
    """Raise StorageError unless the files of a commit have the manifest's sizes; hashes are not checked."""
    for name, record in _read_manifest(folder / MANIFEST).files.items():
        _require_size(folder / name, record)


def _state_sha256(step: int, hashes: Mapping[str, str]) -> str:
    lines = [f"{name} {sha256}\n" for name, sha256 in sorted(hashes.items())]
    return hashlib.sha256(f"step {step}\n{''.join(lines)}".encode()).hexdigest()


def _read_manifest(path: Path) -> Manifest:
    """Parse a manifest and verify its own hash, which covers every byte."""
    data = read_file(path, limit=_JSON_LIMIT, follow=False)
    value = parse_json(data, path)
    number = value.get("format") if isinstance(value, dict) else None
    if type(number) is int and number > COMMIT_FORMAT:
        raise StorageError(
            f"{path}: format {number}, and this version reads up to {COMMIT_FORMAT}; upgrade highrank"
        )
    try:
        manifest = Manifest.model_validate(value)
        canonical = canonical_json(sealed(manifest.model_dump()))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ascii(".".join(map(str, first["loc"])))[:100]
        raise StorageError(f"{path}: damaged or foreign at {key}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path}: damaged or foreign, not canonical JSON") from error
    if data != canonical:
        raise StorageError(f"{path}: damaged, it does not match its own SHA-256")
    return manifest


def _verify(path: Path, record: FileRecord) -> None:
    _require_size(path, record)
    _check(path, record, record.size, sha256_file(path, follow=False))


def _require_size(path: Path, record: FileRecord) -> None:
    with storage_errors(path):
        size = os.lstat(path).st_size
    _check(path, record, size, record.sha256)


def _read_verified(path: Path, record: FileRecord) -> bytes:
    _require_size(path, record)  # or a false size in the manifest would take its memory
    data = read_file(path, limit=record.size, follow=False)
    _check(path, record, len(data), hashlib.sha256(data).hexdigest())
    return data


def _check(path: Path, record: FileRecord, size: int, sha256: str) -> None:
    if size != record.size:
        raise StorageError(f"{path}: damaged, {size:,} bytes where the manifest says {record.size:,}")
    if sha256 != record.sha256:
        raise StorageError(f"{path}: damaged, its SHA-256 is not the manifest's")


def _files(
    groups: Mapping[str, Mapping[str, "Tensor"]], state: Mapping[str, JSON]
) -> Iterator[tuple[str, int, Iterable[Part]]]:
    """Names, sizes and contents of files; equal tensors and state give equal bytes in every process."""
    for group, tensors in sorted(groups.items()):
        if not re.fullmatch(_GROUP, group):
            raise ValueError(f"group {group!r}: use lower-case letters, digits and underscores")
        if tensors:
            yield group + TENSORS, *tensor_file(tensors)
    data = canonical_json(state)
    yield STATE, len(data), (data,)


def _require_memory(needed: int) -> None:
    """Raise MemoryError for too little memory, because safetensors would panic with a page of text.

    The memory is mapped and not touched, so that the question itself takes none.
    """
    try:
        mmap.mmap(-1, needed + (1 << 20)).close()
    except OSError as error:
        raise MemoryError from error


def _deserialise(data: bytes, path: Path) -> dict[str, "Tensor"]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    if int.from_bytes(data[:8], "little") > min(len(data), _HEADER_LIMIT):
        raise StorageError(f"{path}: its header is larger than any we write; the file is foreign")
    _require_memory(2 * len(data))
    try:
        return load(data)
    except (SafetensorError, KeyError, ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise StorageError(f"{path}: not readable as safetensors; the file is foreign") from error


def is_intact(path: Path) -> bool:
    """True if a commit folder and all its tensors match its manifest."""
    with suppress(StorageError):
        return bool(Commit.read(path))
    return False


def average_tensors(sets: Iterable[Mapping[str, "Tensor"]]) -> dict[str, "Tensor"]:
    """Mean of tensors by name, computed in float64, in the dtype of the first set; integers are not averaged.

    One set is read at a time, and integer tensors are those of the first. Raises StorageError if names or
    shapes differ.
    """
    import torch

    first: dict[str, Tensor] = {}
    sums: dict[str, Tensor] = {}
    count = 0
    for tensors in sets:
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        if count and shapes != {name: tensor.shape for name, tensor in first.items()}:
            raise StorageError("the checkpoints to average are of different models; choose best or last")
        first = first or dict(tensors)
        count += 1
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                sums[name] = sums[name] + tensor if name in sums else tensor.to(torch.float64)
    return {
        name: (sums[name] / count).to(tensor) if name in sums else tensor for name, tensor in first.items()
    }
