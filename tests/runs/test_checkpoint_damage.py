"""Damaged and hostile commits: every flipped bit is noticed, and nothing that a file says is done."""

import hashlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lm.errors import StorageError
from lm.runs import commit as commit_module
from lm.runs.checkpoint import CheckpointStore, Commit
from tests.support import faults
from tests.support.tiny_store import flip, forge, header, holds, one_line, save

pytestmark = pytest.mark.usefixtures("quick_fsync")


def flips(store: CheckpointStore, count: int) -> int:
    """How many of so many single-bit flips, anywhere in the newest commit, are noticed."""
    choose, noticed = random.Random(1), 0
    files = sorted((store.folder / "step-00000002").iterdir())
    for number in range(count):
        path, original = files[number % len(files)], files[number % len(files)].read_bytes()
        flip(path, choose.randrange(8 * len(original)))
        latest = store.latest()
        assert latest is not None
        noticed += latest.step == 1 and str(path) in store.problems[0]
        path.write_bytes(original)
    return noticed


def test_every_flipped_bit_is_noticed_and_the_file_is_named(store: CheckpointStore) -> None:
    assert flips(store, 400) == 400
    assert holds(store.open("last"), 2)


def test_the_flip_test_sees_a_missing_hash_check(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_module, "_check", lambda path, record, size, sha256: None)
    assert flips(store, 100) < 60


def test_every_flipped_bit_of_a_manifest_is_noticed(store: CheckpointStore) -> None:
    path = store.folder / "step-00000002" / "manifest.json"
    original = path.read_bytes()
    for bit in range(0, 8 * len(original), 13):
        flip(path, bit)
        with pytest.raises(StorageError) as error:
            Commit.read(path.parent)
        one_line(error, "step-00000002")
        path.write_bytes(original)


def test_other_damage_is_noticed(store: CheckpointStore) -> None:
    newest, older = store.folder / "step-00000002", store.folder / "step-00000001"
    backup = store.folder.parent / "backup"
    shutil.copytree(newest, backup)

    def rewrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[], object]:
        return lambda: (newest / name).write_bytes(change((newest / name).read_bytes()))

    damages = [lambda: newest.rename(store.folder / "step-00000009")]
    for name in sorted(path.name for path in newest.iterdir()):
        damages += [
            rewrite(name, lambda data: data[:-1]),
            rewrite(name, lambda data: b""),
            rewrite(name, lambda data: data + b"\0"),
            rewrite(name, lambda data: data + b"\n"),
            rewrite(name, lambda data: bytes(len(data))),
            (newest / name).unlink,
            lambda name=name: shutil.copy(older / name, newest / name),  # type: ignore[misc]
        ]
    for damage in damages:
        damage()
        latest = store.latest()
        assert latest is not None
        assert latest.step == 1
        assert len(store.problems) == 1
        for folder in store.folder.glob("step-*[29]"):
            shutil.rmtree(folder)
        shutil.copytree(backup, newest)


def test_weights_need_no_other_tensors_to_be_intact(store: CheckpointStore) -> None:
    folder = store.folder / "step-00000002"
    others = [path for path in folder.glob("*.safetensors") if path.stem not in ("model", "average")]
    assert others
    for path in others:
        flip(path, 100)
    assert store.weights("step-2")
    with pytest.raises(StorageError, match="damaged"):
        store.open("step-2")
    flip(folder / "model.safetensors", 100)
    with pytest.raises(StorageError, match=r"model\.safetensors: damaged.*step-1"):
        store.weights("step-2")


# --- hostile files ---


RECORD = {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 2}, "format 2"),
        ({"format": 10**30}, "upgrade"),
        ({"format": "1"}, "format"),
        ({"format": True}, "manifest.json"),
        ({"step": 6}, "renamed"),
        ({"step": -5}, "step"),
        ({"files": {}}, "state.json"),
        ({"files": {"../outside.json": RECORD}}, "files"),
        ({"files": {"state.json": RECORD, "/etc/passwd": RECORD}}, "files"),
        ({"files": {"state.json": RECORD, "a/../../x.safetensors": RECORD}}, "files"),
        ({"files": {"state.json": RECORD, "model.safetensors\n": RECORD}}, "files"),
        ({"files": {"state.json": RECORD, "\x1b[2J.safetensors": RECORD}}, "files"),
        ({"files": {"state.json": RECORD, "model.pt": RECORD}}, "files"),
        ({"files": {"state.json": {"size": -1, "sha256": RECORD["sha256"]}}}, "size"),
        ({"files": {"state.json": {"size": 1 << 60, "sha256": RECORD["sha256"]}}}, "size"),
        ({"files": {"state.json": {"size": 1 << 40, "sha256": RECORD["sha256"]}}}, "bytes"),
        ({"files": {"state.json": {"size": 2.0, "sha256": RECORD["sha256"]}}}, "size"),
        ({"files": {"state.json": {"size": 2, "sha256": "0" * 63}}}, "sha256"),
        ({"extra": 1}, "extra"),
        ({"facts": [1]}, "facts"),
    ],
)
def test_a_hostile_manifest_is_refused(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    (tmp_path / "outside.json").write_text("{}")
    folder = tmp_path / "checkpoints" / "step-00000005"
    forge(folder, {"state.json": b"{}"}, changes)
    for tensors in (True, False):
        with pytest.raises(StorageError) as error:
            Commit.read(folder, tensors=tensors)
        one_line(error, words, "step-00000005")


def test_the_forgery_itself_would_pass(tmp_path: Path) -> None:
    forge(tmp_path / "step-00000005", {"state.json": b"{}"})
    assert Commit.read(tmp_path / "step-00000005").step == 5


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"format":' + b"9" * 10_000 + b"}",
        b'{"format":NaN}',
    ],
)
def test_a_manifest_that_is_no_manifest_is_refused(store: CheckpointStore, data: bytes) -> None:
    (store.folder / "step-00000002" / "manifest.json").write_bytes(data)
    with pytest.raises(StorageError) as error:
        store.open("step-2")
    one_line(error, "manifest.json")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x08",
        header({}, 1 << 62),
        header({}, 100_000_000),
        header({"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}}) + bytes(4),
        header({"w": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 0]}}),
        header({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}) + bytes(4),
        header({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}) + bytes(4),
        header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}) + bytes(4),
        header({"w": {"dtype": "Q99", "shape": [1], "data_offsets": [0, 4]}}) + bytes(4),
        header(
            {
                "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            }
        )
        + bytes(4),
        header("x" * 1000),
        b"\x80\x04cos\nsystem\n(S'touch canary'\ntR.",
        b"[" * 200_000,
    ],
)
def test_hostile_tensors_with_right_hashes_are_refused(tmp_path: Path, data: bytes) -> None:
    forge(tmp_path / "step-00000005", {"state.json": b"{}", "model.safetensors": data})
    with pytest.raises(StorageError) as error:
        Commit.read(tmp_path / "step-00000005").tensors("model")
    one_line(error, "model.safetensors", "foreign")


def test_a_hostile_state_is_refused(tmp_path: Path) -> None:
    for number, data in enumerate([b"[]", b"{", b"[" * 100_000, b'{"lr":Infinity}', b"\xff"]):
        folder = tmp_path / str(number) / "step-00000005"
        forge(folder, {"state.json": data})
        with pytest.raises(StorageError) as error:
            Commit.read(folder)
        one_line(error, "state.json")


def test_links_and_special_files_are_never_followed(store: CheckpointStore, tmp_path: Path) -> None:
    newest, outside = store.folder / "step-00000002", tmp_path / "outside"
    shutil.copytree(newest, outside)
    for name in ("model.safetensors", "state.json", "manifest.json"):
        (newest / name).unlink()
        (newest / name).symlink_to(outside / name)
        with pytest.raises(StorageError) as error:
            store.open("step-2")
        one_line(error, name)
        (newest / name).unlink()
        os.mkfifo(newest / name)
        with pytest.raises(StorageError):
            store.open("step-2")
        (newest / name).unlink()
        shutil.copy(outside / name, newest / name)
    shutil.rmtree(newest)
    newest.symlink_to(outside)
    with pytest.raises(StorageError) as error:
        store.open("step-2")
    one_line(error, "not a folder")
    store.prune([1])
    assert len(list(outside.iterdir())) == 4, "pruning deletes a link, not what it points to"
    (tmp_path / "linked").symlink_to(store.folder)
    linked = CheckpointStore(tmp_path / "linked")
    for action in (linked.latest, linked.clean, lambda: linked.prune([]), lambda: save(linked, 9)):
        with pytest.raises(StorageError) as error:
            action()
        one_line(error, "symbolic link")


def test_reading_changes_nothing(store: CheckpointStore) -> None:
    (store.folder / "step-00000007.tmp").mkdir()
    flip(store.folder / "step-00000002" / "model.safetensors", 5)

    def read() -> None:
        store.latest()
        store.verify_all()
        store.steps("best")
        store.weights("step-1")

    assert set(faults.count_operations(read)) <= {"open"}


def test_checking_needs_no_torch(store: CheckpointStore) -> None:
    program = (
        "import sys; from pathlib import Path; from lm.runs.checkpoint import CheckpointStore\n"
        "assert CheckpointStore(Path(sys.argv[1])).latest().step == 2; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(store.folder)], check=True)
