"""Folders that appear by rename: killed at any operation, the older or the new one is there, whole."""

import os
from pathlib import Path

import pytest

from lm.disk.new_folder import NewFolder, beside, strangers
from lm.disk.storage import write_new
from lm.errors import ConfigError, StorageError
from tests.support.faults import count_operations, kill_at


def publish(place: Path, content: bytes) -> None:
    new = NewFolder(place, "publish")
    with new.exclusive(), new.building() as folder:
        for name in ("a", "b"):
            write_new(folder / name, content)


def held(place: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(place.iterdir())] if place.exists() else []


@pytest.mark.parametrize("older", [False, True])
def test_a_kill_leaves_the_older_or_the_new_folder(tmp_path: Path, older: bool) -> None:
    place = tmp_path / "out"
    if older:
        publish(place, b"old")
    operations = count_operations(lambda: publish(tmp_path / "other", b"new"))
    for number in range(len(operations) + older):
        assert kill_at(number, lambda: publish(place, b"new"))
        with NewFolder(place, "publish").exclusive():  # restores
            assert held(place) in ([b"new"] * 2, [b"old"] * 2 if older else [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]


def test_a_failure_leaves_the_older_folder_and_nothing_beside_it(tmp_path: Path) -> None:
    place = tmp_path / "out"
    publish(place, b"old")
    new = NewFolder(place, "publish")
    with pytest.raises(StorageError, match="no such file"), new.exclusive(), new.building() as folder:
        write_new(folder / "missing" / "a", b"new")
    assert held(place) == [b"old"] * 2
    assert not new.disturbed
    with new.exclusive(), pytest.raises(StorageError, match="another `publish` is writing it"):
        publish(place, b"new")


def test_a_failure_leaves_no_empty_parents(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "new" / "corpus"
    new = NewFolder(place, "publish")
    with pytest.raises(KeyError), new.exclusive(), new.building():
        raise KeyError
    assert not list(tmp_path.iterdir())
    (tmp_path / "runs").mkdir()
    with pytest.raises(KeyError), new.exclusive():
        raise KeyError
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs"], "which was there before"
    publish(place, b"new")
    assert held(place) == [b"new"] * 2


def test_strangers_are_files_and_links_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "a" / "empty").mkdir(parents=True)
    for name in ("known", "a/known", "a/new"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert strangers(tmp_path, ["known", "a/known"]) == [
        tmp_path / "a" / "new",
        tmp_path / "gone",
        tmp_path / "link",
    ]


@pytest.mark.parametrize(
    ("folder", "expected"), [("a", "a.parts"), (".", "../here.parts"), ("..", "../../{parent}.parts")]
)
def test_a_folder_beside_another_has_its_name(in_tmp: Path, folder: str, expected: str) -> None:
    (in_tmp / "here").mkdir()
    os.chdir(in_tmp / "here")
    expected = expected.format(parent=in_tmp.name)
    assert os.path.abspath(beside(Path(folder), ".parts")) == os.path.abspath(expected)
    with pytest.raises(ConfigError, match=r"^/: has no name of its own"):
        beside(Path("/"), ".parts")
    with pytest.raises(ConfigError, match=r"^/: has no name of its own"):
        NewFolder(Path("/"), "lm prepare")


@pytest.mark.parametrize("folder", [".", "..", "../here", "../link"])
def test_the_working_folder_is_not_replaced(in_tmp: Path, folder: str) -> None:
    (in_tmp / "here").mkdir()
    (in_tmp / "link").symlink_to("here")
    os.chdir(in_tmp / "here")
    with pytest.raises(ConfigError, match=r"you are in this folder; choose another one$"):
        publish(Path(folder), b"new")
    assert sorted(path.name for path in in_tmp.iterdir()) == ["here", "link"]
    publish(Path("../other"), b"new")
