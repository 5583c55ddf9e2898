"""Prepared folders: damage found, foreign files kept, and never half a result."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dialog.corpora import prepare as module
from dialog.corpora.corpus import load_dialogs
from dialog.corpora.prepare import prepare
from dialog.corpora.prepared import write_split
from lm.disk import new_folder
from lm.disk.filelock import FileLock
from lm.errors import DataError, StorageError
from lm.text import prepared_folder as folders
from lm.text.prepared_folder import OutputFolder
from tests.support.outcomes import files_below
from tests.support.talk_source import corpus, everything, source_file


@pytest.mark.parametrize("name", ["state.json", "data-00000-of-00001.arrow"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"ARROW1 and then nothing", b"half"])
def test_damaged_prepared_splits_are_named(name: str, content: bytes | None, tmp_path: Path) -> None:
    folder = tmp_path / "split"
    write_split(folder, load_dialogs(source_file(tmp_path, corpus(3))))
    path = folder / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:700] if content == b"half" and name != "state.json" else content)
    with pytest.raises(DataError, match=r"split: .*run `dialog prepare` again"):
        load_dialogs(str(folder))


def test_every_damage_of_a_prepared_split_is_noticed(tmp_path: Path) -> None:
    """Flipped bits anywhere, zeroed and cut files, and an edit that reads as well as what was written."""
    prepare(source_file(tmp_path, corpus(9)), tmp_path / "out")
    folder, rng = tmp_path / "out/train", random.Random(1)
    whole = load_dialogs(str(folder))
    edited = [replace(dialog, topic="weather") for dialog in whole]
    write_split(tmp_path / "edited", edited)
    refused = 0
    for path in sorted(folder.iterdir()):
        original = path.read_bytes()
        places = [rng.randrange(8 * len(original)) for _ in range(40)]
        damages = [_flipped(original, place) for place in places]
        damages += [original[: len(original) // 2], original + b"\0", bytes(len(original))]
        if path.suffix == ".arrow":
            damages.append((tmp_path / "edited" / path.name).read_bytes())
        for damaged in damages:
            path.write_bytes(damaged)
            with pytest.raises(DataError, match="out/train") as error:
                load_dialogs(str(folder))
            assert str(error.value).isprintable()
            refused += 1
        path.write_bytes(original)
    assert refused >= 120
    assert load_dialogs(str(folder)) == whole


def _flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("name", ["dataset_info.json", "state.json", "data-00000-of-00001.arrow"])
@pytest.mark.parametrize("with_manifest", [True, False])
def test_pipes_and_huge_files_in_a_prepared_split_are_refused_at_once(
    name: str, with_manifest: bool, tmp_path: Path
) -> None:
    prepare(source_file(tmp_path, corpus(9)), tmp_path / "out")
    path = tmp_path / "out/train" / name
    if not with_manifest:
        (tmp_path / "out/manifest.json").unlink()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match="out/train"):
        load_dialogs(str(path.parent))
    path.unlink()
    path.touch()
    os.truncate(path, 10**8)
    if with_manifest or name != "dataset_info.json":
        with pytest.raises(DataError, match="out/train"):
            load_dialogs(str(path.parent))


def test_a_split_that_was_copied_alone_is_read(tmp_path: Path) -> None:
    prepare(source_file(tmp_path, corpus(9)), tmp_path / "out")
    whole = load_dialogs(str(tmp_path / "out/train"))
    shutil.copytree(tmp_path / "out/train", tmp_path / "alone/train")
    assert load_dialogs(str(tmp_path / "alone/train")) == whole
    (tmp_path / "alone/manifest.json").write_text('{"of": "something else"}')
    assert load_dialogs(str(tmp_path / "alone/train")) == whole
    (tmp_path / "alone/manifest.json").write_text('{"format": 1, "outputs"')
    with pytest.raises(
        DataError, match=r"manifest\.json: damaged; prepare the corpus again, with another --out"
    ):
        load_dialogs(str(tmp_path / "alone/train"))
    with pytest.raises(StorageError, match=r"manifest\.json: damaged; choose another --out"):
        prepare(source_file(tmp_path, corpus(9)), tmp_path / "alone")


def test_foreign_folders_and_files_are_never_replaced(tmp_path: Path) -> None:
    source = source_file(tmp_path, corpus(9))
    foreign = tmp_path / "out"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("precious")
    typed = {"format": 1, "source": "x", "options": {}, "inputs": {}, "outputs": {}}
    wrong = [json.dumps(typed | {key: value}) for key, value in (("options", None), ("inputs", []))]
    for stored in (None, "{}", "[1]", *wrong):
        if stored:
            (foreign / "manifest.json").write_text(stored)
        with pytest.raises(StorageError, match="was not written by `dialog prepare`"):
            prepare(source, foreign)
    with pytest.raises(StorageError, match="was not written by `dialog prepare`"):
        prepare(source, Path(source))
    assert (foreign / "thesis.tex").read_text() == "precious"
    (tmp_path / "empty").mkdir()
    assert not prepare(source, tmp_path / "empty").unchanged
    with pytest.raises(StorageError):
        prepare(source, Path(source) / "below")


def test_two_at_a_time_are_told_apart(tmp_path: Path) -> None:
    source = source_file(tmp_path, corpus(9))
    with (
        FileLock(tmp_path / ".out.lock"),
        pytest.raises(StorageError, match="another `dialog prepare` is writing it"),
    ):
        prepare(source, tmp_path / "out")
    (tmp_path / ".out.tmp").mkdir()
    (tmp_path / ".out.tmp/rest").write_text("of a killed process")
    prepare(source, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "talk.tsv"]


@pytest.mark.parametrize("call", ["write_split", "_json", "sha256_file", "sync", "publish_folder"])
@pytest.mark.parametrize("number", [1, 3])
def test_failures_leave_the_old_result(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up at some step: the old result stays as it was."""
    source, out = source_file(tmp_path, corpus(20)), tmp_path / "out"
    prepare(source, out)
    before = files_below(out)
    source_file(tmp_path, corpus(21))
    places = {"write_split": module, "sync": new_folder, "publish_folder": new_folder}
    place = places.get(call, folders)
    original, calls = getattr(place, call), 0

    def failing(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= number:
            raise OSError(28, "No space left on device")
        return original(*arguments, **options)

    monkeypatch.setattr(place, call, failing)
    failed = False
    try:
        prepare(source, out)
    except (StorageError, OSError):
        failed = True
    monkeypatch.undo()
    assert failed or number == 3
    if failed:
        assert files_below(out) == before
    assert not (tmp_path / ".out.tmp").exists()
    prepare(source, out)
    prepare(source, tmp_path / "fresh")
    assert everything(out) == everything(tmp_path / "fresh")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "out", "talk.tsv"]


PROGRAM = """
import sys
from pathlib import Path
import datasets, pyarrow
from dialog.corpora.prepare import prepare
print("ready", flush=True)
prepare(sys.argv[1], Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_killed_at_any_moment_the_output_is_absent_or_complete(tmp_path: Path) -> None:
    source, out = source_file(tmp_path, corpus(3000)), tmp_path / "out"
    prepare(source, tmp_path / "whole")
    whole = everything(tmp_path / "whole")
    rng, absent = random.Random(1), 0
    for _ in range(15):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, source, str(out)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.random() * 0.6)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if out.exists():
            assert everything(out) == whole
            (out / "manifest.json").write_text(
                (out / "manifest.json").read_text().replace('"seed": 1', '"seed": 9')
            )
        else:
            absent += 1
    assert absent > 0, "no kill came early enough to test anything"
    prepare(source, out)
    assert everything(out) == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "talk.tsv", "whole"]


def test_who_comes_second_looks_again_at_what_is_there(tmp_path: Path) -> None:
    """Both looked at an empty place; by the time the second has it for itself, there is something."""
    first, second = (OutputFolder(tmp_path / "out", "dialog prepare") for _ in range(2))
    wanted = {"format": 1, "source": "a", "options": {}, "inputs": {"a": 1}}
    assert second.current(wanted) is None
    with first.exclusive():
        first.require_replaceable(wanted)
        with first.building() as building:
            first.finish(building, wanted, {"dialogs": 1}, [])
    other = wanted | {"source": "b", "inputs": {"b": 2}}
    with second.exclusive():
        assert second.current(wanted) is not None
        with pytest.raises(StorageError, match="holds the result of `dialog prepare a`"):
            second.require_replaceable(other)
    (tmp_path / "out/thesis.tex").write_text("precious")
    with second.exclusive(), pytest.raises(StorageError, match=r"thesis\.tex"):
        second.require_replaceable(wanted | {"options": {"seed": 2}})


def test_a_result_that_was_moved_aside_comes_back(tmp_path: Path) -> None:
    """A process that was killed between its two renames has left nothing in the result's place."""
    source, out = source_file(tmp_path, corpus(9)), tmp_path / "out"
    prepare(source, out)
    before = files_below(out)
    out.rename(tmp_path / ".out.old")
    (tmp_path / ".out.tmp").mkdir()
    assert prepare(source, out).unchanged
    assert files_below(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "talk.tsv"]
