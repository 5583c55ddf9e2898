"""Rows of damaged and hostile checkpoints: E1 flipped bits, E2 other damage, F files of an attacker."""

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from lm.disk.jsonfile import canonical_json
from lm.errors import StorageError
from lm.runs.checkpoint import CheckpointStore, Commit
from tests.matrix.row import Case, refused
from tests.support.tiny_store import flip, forge, header, holds, two_commits


@contextmanager
def kept_store(folder: Path) -> Iterator[tuple[CheckpointStore, Callable[[], None]]]:
    """A store of two commits, and what makes it whole again; nothing waits for the disk."""
    with patch.object(os, "fsync", lambda fd: None):
        store = two_commits(folder)
        backup = folder / "backup"
        shutil.copytree(store.folder, backup)

        def mend() -> None:
            shutil.rmtree(store.folder)
            shutil.copytree(backup, store.folder)

        yield store, mend


@contextmanager
def flipped_bits(folder: Path) -> Iterator[Case]:
    """E1: one bit anywhere in the newest commit."""
    with kept_store(folder) as (store, _):
        files = sorted((store.folder / "step-00000002").iterdir())

        def case(rng: random.Random, index: int) -> int:
            path = files[index % len(files)]
            original = path.read_bytes()
            flip(path, rng.randrange(8 * len(original)))
            try:
                fallen_back(store, path)
            finally:
                path.write_bytes(original)
            return 1

        yield case
        assert holds(store.open("last"), 2)


def fallen_back(store: CheckpointStore, damaged: Path) -> None:
    """The newest commit is known to be damaged, by name, and the one before it is used."""
    latest = store.latest()
    assert latest is not None, "nothing is left"
    assert latest.step == 1, f"{damaged.name}: the damage went unnoticed"
    assert holds(latest, 1)
    assert len(store.problems) == 1
    assert str(damaged) in store.problems[0], store.problems
    assert store.problems[0].isprintable()
    refused(lambda: store.open("step-2"), StorageError)


@contextmanager
def other_damage(folder: Path) -> Iterator[Case]:
    """E2: cut, longer, zeroed in part, overwritten, missing, exchanged between commits, renamed, newer."""
    with kept_store(folder) as (store, mend):
        yield lambda rng, index: spoil(store, mend, rng, index)


def spoil(store: CheckpointStore, mend: Callable[[], None], rng: random.Random, index: int) -> int:
    newest, older = store.folder / "step-00000002", store.folder / "step-00000001"
    path = rng.choice(sorted(newest.iterdir()))
    data = path.read_bytes()
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.choice((1, 8, 64, 4096)))
    manifest = json.loads((newest / "manifest.json").read_bytes())
    ways: list[Callable[[], object]] = [
        lambda: path.write_bytes(data[:start]),
        lambda: path.write_bytes(data + rng.randbytes(rng.randint(1, 99))),
        lambda: path.write_bytes(data[:start] + bytes(end - start) + data[end:]),
        lambda: path.write_bytes(data[:start] + rng.randbytes(end - start) + data[end:]),
        lambda: path.write_bytes(data[:start] + data[end:] + data[start:end] + b"x"),
        path.unlink,
        lambda: shutil.copy(older / path.name, path),
        lambda: path.rename(newest / f"x{path.name}"),
        lambda: newest.rename(store.folder / f"step-{rng.randint(3, 99):08d}"),
        lambda: (newest / "manifest.json").write_bytes(
            canonical_json(manifest | {"format": 1 + rng.randint(1, 9)})
        ),
        lambda: (newest / "manifest.json").write_bytes(canonical_json(dict(list(manifest.items())[1:]))),
        lambda: (path.unlink(), path.mkdir()),
    ]
    before = contents(newest)
    ways[index % len(ways)]()
    try:
        if newest.is_dir() and contents(newest) == before:
            return 0  # zeros where there were zeros
        latest = store.latest()
        assert latest is not None
        assert latest.step == 1, f"way {index % len(ways)} on {path.name} went unnoticed"
        assert holds(latest, 1)
        assert len(store.problems) == 1
        assert store.problems[0].isprintable()
    finally:
        mend()
    return 1


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() if path.is_file() else b"" for path in folder.iterdir()}


@contextmanager
def hostile(folder: Path) -> Iterator[Case]:
    """F: forged manifests, tensor files and states with right hashes; names that lead out; pickles; links."""
    with patch.object(os, "fsync", lambda fd: None):
        yield lambda rng, index: attack(folder / f"attack-{index}", rng, index)


def attack(folder: Path, rng: random.Random, index: int) -> int:
    """It is refused in one line, nothing runs, and nothing appears outside."""
    folder.mkdir()
    canary = folder / "canary"
    commit = folder / "checkpoints" / "step-00000005"
    kind = ("manifest", "tensors", "pickle", "state", "links")[index % 5]
    if kind == "manifest":
        forge(commit, {"state.json": b"{}"}, {rng.choice(("format", "step", "files")): strange(rng)})
    elif kind == "state":
        forge(
            commit, {"state.json": rng.choice((b"[]", b"{", b"[" * 99_999, b'{"a":NaN}', rng.randbytes(9)))}
        )
    elif kind == "links":
        forge(commit, {"state.json": b"{}"})
        victim = commit / rng.choice(("state.json", "manifest.json"))
        victim.rename(folder / "elsewhere")
        rng.choice((lambda: victim.symlink_to(folder / "elsewhere"), lambda: os.mkfifo(victim)))()
    else:
        data = gadget(canary, rng) if kind == "pickle" else tensor_bomb(rng)
        forge(commit, {"state.json": b"{}", "model.safetensors": data})
    before = sorted(folder.rglob("*"))
    refused(lambda: Commit.read(commit).tensors("model"), StorageError)
    assert not canary.exists(), "code of the file has run"
    assert sorted(folder.rglob("*")) == before, "files appeared"
    shutil.rmtree(folder)
    return 1


def strange(rng: random.Random) -> object:
    """What stands in no manifest."""
    record = {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    escape = rng.choice(
        ("../x.json", "/etc/passwd", "a/../../x.safetensors", "\x1b[2J", "model.pt", "x" * 99)
    )
    values: list[object] = [
        rng.choice((2, -1, 10**30, True, 1.5, "1", None, [], {"a": 1})),
        {"state.json": record, escape: record},
        {"state.json": record | {"size": rng.choice((-1, 1 << 40, 2.0, "2"))}},
        {"state.json": record | {"sha256": rng.choice(("0" * 63, "Z" * 64, 7))}},
    ]
    return rng.choice(values)


def gadget(canary: Path, rng: random.Random) -> bytes:
    """A pickle that would make a file."""
    command = f"touch {canary}".encode()
    forms = (
        b"cos\nsystem\n(S'" + command + b"'\ntR.",
        b"\x80\x04cposix\nsystem\nX" + len(command).to_bytes(4, "little") + command + b"\x85R.",
        b"\x80\x02cbuiltins\neval\nX" + (3).to_bytes(4, "little") + b"1/0\x85R.",
    )
    data = bytearray(rng.choice(forms))
    return bytes(data) if rng.random() < 0.5 else header({"w": {}}) + bytes(data)


def tensor_bomb(rng: random.Random) -> bytes:
    """A safetensors file whose header lies."""
    size = rng.choice((0, 1, 4, 100))
    entry: dict[str, object] = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    entry |= rng.choice((
        {"shape": [1 << rng.randint(20, 62)]}, {"shape": [-1]}, {"dtype": "Q99"}, {"data_offsets": [4, 0]},
        {"data_offsets": [0, 1 << rng.randint(3, 62)]}, {"data_offsets": [rng.randint(1, 99), 104]},
        {"shape": "x"}, {"dtype": 7},
    ))  # fmt: skip
    both = {"a": entry, "b": entry}
    length = rng.choice((None, None, 1 << 62, 100_000_000, 3))
    return header(rng.choice((both, {"w": entry})), length) + rng.randbytes(size)
