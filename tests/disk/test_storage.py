"""File operations: whole or absent after any failure, and messages that say what to do."""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lm.disk import jsonfile, storage
from lm.errors import StorageError
from tests.support import faults
from tests.support.outcomes import files_below


@pytest.mark.parametrize("size", [0, 1, storage.CHUNK - 1, storage.CHUNK, 2 * storage.CHUNK + 1])
def test_every_size_is_written_whole(tmp_path: Path, size: int) -> None:
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    storage.write_atomic(tmp_path / "data", data)
    assert storage.read_file(tmp_path / "data", limit=size) == data
    assert storage.sha256_file(tmp_path / "data") == hashlib.sha256(data).hexdigest()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, data[:7]))
    storage.write_atomic(tmp_path / "data", bytes(range(100)))
    assert (tmp_path / "data").read_bytes() == bytes(range(100))


def fill(path: Path) -> None:
    """What a library that wants a path would do."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    os.write(fd, b"new content")
    os.close(fd)


@pytest.mark.parametrize("data", [b"new content", fill])
@pytest.mark.parametrize("before", [{}, {"file": b"old"}])
def test_a_kill_leaves_the_old_or_the_new_file(
    tmp_path: Path, data: bytes | Callable[[Path], object], before: dict[str, bytes]
) -> None:
    number, killed, seen = 0, True, set()
    while killed:
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, content in before.items():
            (folder / name).write_bytes(content)
        killed = faults.kill_at(number, lambda folder=folder: storage.write_atomic(folder / "file", data))
        assert files_below(folder).get("file") in (b"new content", before.get("file"))
        seen.add(files_below(folder).get("file"))
        number += 1
    assert seen == {b"new content", before.get("file")}
    assert files_below(folder) == {"file": b"new content"}


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EFBIG]
)
def test_a_failure_leaves_the_old_file_and_names_it(tmp_path: Path, code: int) -> None:
    path = tmp_path / "file"
    total = len(faults.count_operations(lambda: storage.write_atomic(path, b"old")))
    for number in range(total):
        path.write_bytes(b"old")
        with pytest.raises(StorageError) as error:
            faults.fail_at(number, code, lambda: storage.write_atomic(path, b"new"))
        assert os.strerror(code).lower() in str(error.value)
        named = tmp_path if number >= total - 2 else path  # the last two operations sync the folder
        assert str(error.value).startswith(f"{named}: ")
        assert set(files_below(tmp_path)) == {"file"}
        assert path.read_bytes() in (b"old", b"new")


def test_an_error_of_the_writer_is_not_ours(tmp_path: Path) -> None:
    def writer(path: Path) -> None:
        path.write_bytes(b"half")
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        storage.write_atomic(tmp_path / "file", writer)
    assert not files_below(tmp_path)


def test_the_order_of_operations(tmp_path: Path) -> None:
    assert faults.count_operations(lambda: storage.write_atomic(tmp_path / "file", b"x")) == [
        *("open", "write", "fsync"),  # the temporary file
        "rename",
        *("open", "fsync"),  # the folder
    ]
    (tmp_path / "a.tmp").mkdir()

    def publish() -> None:
        for name in "xy":
            storage.write_new(tmp_path / "a.tmp" / name, b"1")
        storage.publish_folder(tmp_path / "a.tmp", tmp_path / "a")

    names = faults.count_operations(publish)
    assert names == ["open", "write", "fsync"] * 2 + ["open", "fsync", "rename", "open", "fsync"]
    assert files_below(tmp_path / "a") == {"x": b"1", "y": b"1"}


def test_folders_are_made_durably_and_once(tmp_path: Path) -> None:
    made = faults.count_operations(lambda: storage.make_folder(tmp_path / "a" / "b"))
    assert made == ["mkdir", "open", "fsync"] * 2
    assert faults.count_operations(lambda: storage.make_folder(tmp_path / "a" / "b")) == []


def test_a_tree_is_removed_but_not_what_its_links_point_to(tmp_path: Path) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    outside.mkdir()
    (outside / "kept").write_bytes(b"1")
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "file").write_bytes(b"1")
    (tree / "link").symlink_to(outside)
    storage.remove_tree(tree)
    storage.remove_tree(tree)
    assert files_below(outside) == {"kept": b"1"}
    assert not tree.exists()


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_only_regular_files_are_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "target"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        (tmp_path / "elsewhere").write_bytes(b"1")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path)
    with pytest.raises(StorageError, match="is a folder" if kind == "folder" else "not a regular file"):
        storage.write_atomic(path, b"2")
    if kind != "link":
        with pytest.raises(StorageError):
            storage.read_file(path, limit=10)
    else:
        assert storage.read_file(path, limit=10) == b"1"
        with pytest.raises(StorageError, match="symbolic"):
            storage.read_file(path, limit=10, follow=False)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent/file", "no such file"),
        ("file/below", "a part of the path is a file"),
        ("a" * 300, "shorter path"),
        ("nul\0", "NUL"),
    ],
)
def test_impossible_paths_are_named(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    for action in (
        lambda: storage.write_atomic(tmp_path / name, b""),
        lambda: jsonfile.read_json(tmp_path / name),
    ):
        with pytest.raises(StorageError) as error:
            action()
        assert words in str(error.value)
        assert str(error.value).isprintable()


def test_control_characters_of_a_path_are_quoted(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as error:
        jsonfile.read_json(tmp_path / "\x1b[2J\u202e\n")
    assert str(error.value).isprintable()
    assert r"\x1b[2J\u202e\n" in str(error.value)


def test_a_file_larger_than_its_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(11))
    with pytest.raises(StorageError, match="longer than 10 bytes"):
        storage.read_file(tmp_path / "big", limit=10)
    assert len(storage.read_file(tmp_path / "big", limit=11)) == 11


def test_free_space_is_checked_where_the_folder_will_be(tmp_path: Path) -> None:
    storage.require_space(tmp_path / "not" / "yet", 1)
    with pytest.raises(StorageError) as error:
        storage.require_space(tmp_path / "not" / "yet", 10**18)
    assert "needs 1 EB" in str(error.value)
    assert not files_below(tmp_path)


@pytest.mark.parametrize(
    ("size", "up", "down"),
    [
        (0, "0 bytes", "0 bytes"),
        (999, "999 bytes", "999 bytes"),
        (1000, "1 kB", "1 kB"),
        (1001, "1.01 kB", "1 kB"),
        (1 << 20, "1.05 MB", "1.04 MB"),
        (999_999, "1 MB", "999 kB"),
        (123_456_789_012, "124 GB", "123 GB"),
        (5 * 10**21, "5,000 EB", "5,000 EB"),
    ],
)
def test_sizes_are_readable(size: int, up: str, down: str) -> None:
    assert (storage.readable(size), storage.readable(size, up=False)) == (up, down)


def test_what_is_lacking_is_told_in_numbers_that_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = storage.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    with pytest.raises(StorageError, match=r"needs 1\.05 MB, but only 1 MB are free; free 48\.6 kB more"):
        storage.require_space(tmp_path, 1 << 20)


def test_folders_that_cannot_be_synced_are_tolerated_but_files_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(os, "fsync", refuse)
    storage.sync(tmp_path)
    with pytest.raises(StorageError):
        storage.sync(tmp_path / "file")


def test_a_path_that_cannot_be_written_is_refused_beforehand(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("old")
    (tmp_path / "link").symlink_to("old.json")
    for good in ("new.json", "old.json"):
        storage.require_writable(tmp_path / good)
    assert (tmp_path / "old.json").read_text() == "old"
    assert not (tmp_path / "new.json").exists()
    refused = {
        "no/x": "folder does not exist",
        "old.json/x": "folder does not exist",
        ".": "is a folder; name a file",
    }
    for bad, message in (refused | {"link": "not a regular file"}).items():
        with pytest.raises(StorageError, match=message):
            storage.require_writable(tmp_path / bad)


def test_a_folder_that_cannot_be_made_is_refused_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    for good in (tmp_path, tmp_path / "new", tmp_path / "new/in/new"):
        storage.require_place(good)
    assert os.listdir(tmp_path) == ["file"]
    for bad in (tmp_path / "file", tmp_path / "file/new"):
        with pytest.raises(StorageError, match=f"^{bad}: "):
            storage.require_place(bad)
    (tmp_path / "link").symlink_to("nowhere")
    for bad in (tmp_path / "link", tmp_path / "link/new"):
        with pytest.raises(StorageError, match=f"^{tmp_path}/link: a symbolic link that leads nowhere"):
            storage.require_place(bad)
    for check in (storage.require_place, storage.require_writable):
        with pytest.raises(StorageError, match=r"^/proc: no file can be created there"):
            check(Path("/proc/new"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_permission_is_refused_beforehand(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="no file can be created there"):
        storage.require_writable(tmp_path / "x")
