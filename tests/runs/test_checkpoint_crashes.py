"""Commits under kills, power loss and full disks: the old one or the new one stands, whole."""

import errno
import os
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lm.errors import StorageError
from lm.runs.checkpoint import CheckpointStore
from tests.support import faults
from tests.support.outcomes import files_below
from tests.support.power import Disk, Recorder
from tests.support.tiny_store import groups_of, holds, one_line, save

pytestmark = pytest.mark.usefixtures("quick_fsync")


def next_commit(store: CheckpointStore, step: int = 3) -> Callable[[], None]:
    """What the engine does at a checkpoint: commit and prune."""

    def action() -> None:
        save(store, step, best=[step])
        store.prune([2, step])

    return action


def fresh_store(folder: Path) -> CheckpointStore:
    store = CheckpointStore(folder / "checkpoints")
    save(store, 1)
    save(store, 2, best=[1])
    return store


def survives(store: CheckpointStore, allowed: tuple[int, ...], go_on: bool = True) -> None:
    """The newest commit is one of those allowed and exact, and the run can go on from there."""
    latest = store.latest()
    assert latest is not None
    assert latest.step in allowed
    assert holds(latest, latest.step)
    assert not [report.problem for report in store.verify_all() if report.problem], "a kill is no damage"
    assert store.open("last").step in allowed
    best = store.open("best")
    assert holds(best, best.step)
    store.clean()
    after = store.latest()
    assert after is not None
    assert after.state_sha256 == latest.state_sha256
    if not go_on:
        return
    next_commit(store)()
    names = {path.name for path in store.folder.iterdir()}
    assert names == {"step-00000002", "step-00000003"}
    assert holds(store.open("best"), 3)


def test_a_kill_at_any_file_operation_leaves_the_old_or_the_new_commit(tmp_path: Path) -> None:
    template = fresh_store(tmp_path / "template")
    total = len(faults.count_operations(next_commit(fresh_store(tmp_path / "count"))))
    assert total > 30
    for number in range(total + 1):
        store = CheckpointStore(tmp_path / str(number))
        shutil.copytree(template.folder, store.folder)
        killed = faults.kill_at(number, next_commit(store))
        assert killed == (number < total)
        survives(store, (2, 3))


def test_a_kill_while_a_step_is_replaced_leaves_one_of_the_two(tmp_path: Path) -> None:
    template = fresh_store(tmp_path / "template")
    old = template.open("step-2").state_sha256

    def replace(store: CheckpointStore) -> Callable[[], object]:
        return lambda: store.commit(2, groups_of(9), {}, {})

    new = CheckpointStore(tmp_path / "new").commit(2, groups_of(9), {}, {}).state_sha256
    number, killed = 0, True
    while killed:
        store = CheckpointStore(tmp_path / str(number))
        shutil.copytree(template.folder, store.folder)
        killed = faults.kill_at(number, replace(store))
        for tidy in (False, True):
            if tidy:
                store.clean()
            latest = store.latest()
            assert latest is not None
            assert latest.state_sha256 in ((old, new) if killed else (new,))
        assert sorted(path.name for path in store.folder.glob("step-*")) == ["step-00000001", "step-00000002"]
        number += 1
    assert number > 25


def test_a_kill_while_cleaning_up_loses_nothing(tmp_path: Path) -> None:
    template = fresh_store(tmp_path / "template")
    (template.folder / "step-00000002").rename(template.folder / "step-00000002.old")
    shutil.copytree(template.folder / "step-00000001", template.folder / "step-00000003.tmp")
    number, killed = 0, True
    while killed:
        store = CheckpointStore(tmp_path / str(number))
        shutil.copytree(template.folder, store.folder)
        killed = faults.kill_at(number, store.clean)
        survives(store, (2,))
        number += 1
    assert number > 5


def power_losses(tmp_path: Path, sabotage: str = "") -> int:
    """Loses power at every operation of a commit, in several ways each; returns the number of states."""
    store = fresh_store(tmp_path)
    recorder = Recorder(store.folder)
    shutil.copytree(store.folder, before := tmp_path / "before")
    with recorder.recording():
        next_commit(store)()
    disk = Disk(before, recorder.changes)
    folders = {
        change.path for change in recorder.changes if (store.folder / change.path).suffix in ("", ".tmp")
    }
    if sabotage:
        disk.without(
            lambda change: change.kind == "sync" and (change.path in folders) == (sabotage == "folders")
        )
    choose, target, count = random.Random(0), tmp_path / "state", 0
    for length in range(len(disk) + 1):
        for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
            disk.state(length, target, choose, share)
            survives(CheckpointStore(target), (2, 3), go_on=count % 3 == 0)
            shutil.rmtree(target)
            count += 1
    return count


def test_power_loss_at_any_operation_leaves_the_old_or_the_new_commit(tmp_path: Path) -> None:
    assert power_losses(tmp_path) >= 150


@pytest.mark.parametrize("sabotage", ["files", "folders"])
def test_the_power_loss_test_sees_a_missing_fsync(tmp_path: Path, sabotage: str) -> None:
    with pytest.raises((AssertionError, StorageError)):
        power_losses(tmp_path, sabotage)


def test_the_order_of_a_commit(tmp_path: Path) -> None:
    store = fresh_store(tmp_path)
    trace: list[str] = []
    paths: dict[int, str] = {}

    def before(name: str, arguments: tuple[object, ...]) -> None:
        if name in ("fsync", "write") and isinstance(arguments[0], int):
            trace.append(f"{name} {paths[arguments[0]]}")
        elif name in ("rename", "replace"):
            trace.append(f"rename {Path(str(arguments[1])).name}")
        elif name != "open":
            trace.append(f"{name} {Path(str(arguments[0])).name}")

    with faults.intercept(before, lambda fd, path: paths.update({fd: Path(str(path)).name})):
        next_commit(store)()

    def at(event: str) -> int:
        return trace.index(event)

    for name in ("model.safetensors", "rng.safetensors", "state.json"):
        assert at(f"fsync {name}") < at("write manifest.json")
    published = at("rename step-00000003")
    assert at("fsync manifest.json") < at("fsync step-00000003.tmp") < published
    assert trace[published + 1] == "fsync checkpoints"
    assert published < at("rename step-00000001.tmp")
    assert at("rename step-00000001.tmp") < at("rmdir step-00000001.tmp")


def test_a_full_disk_at_any_byte_leaves_the_old_commits(tmp_path: Path) -> None:
    store = fresh_store(tmp_path)
    total = sum(path.stat().st_size for path in (store.folder / "step-00000002").iterdir())
    before = files_below(store.folder)
    for room in [*range(0, total, 97), total - 1]:
        with pytest.raises(StorageError) as error:
            faults.fill_disk_after(room, lambda: save(store, 3, best=[1]))
        one_line(error, "step-00000003", "no space left on device; free 1 MB")
        assert files_below(store.folder) == before
        assert not list(store.folder.glob("*.tmp"))
    survives(store, (2,))


@pytest.mark.parametrize("code", [errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ESTALE])
def test_a_failing_operation_is_a_storage_error_with_nothing_left_behind(tmp_path: Path, code: int) -> None:
    template = fresh_store(tmp_path / "template")
    total = len(faults.count_operations(next_commit(fresh_store(tmp_path / "count"))))
    refused = 0
    for number in range(code % 3, total, 3):
        store = CheckpointStore(tmp_path / str(number))
        shutil.copytree(template.folder, store.folder)
        try:
            faults.fail_at(number, code, next_commit(store))
        except StorageError as error:
            message = str(error)
            assert message.isprintable()
            assert f"{os.strerror(code).lower()}; " in message
            assert message.startswith(str(store.folder))
            refused += 1
        else:
            raise AssertionError(f"operation {number} failed without an error")
        assert not list(store.folder.glob("step-00000003.tmp"))
        survives(store, (2, 3))
    assert refused >= total // 3 - 2


def test_a_file_size_limit_is_named(store: CheckpointStore) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StorageError) as error:
            store.commit(3, {"model": {"w": torch.zeros(1000)}}, {}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    one_line(error, "model.safetensors", "ulimit -f")
    survives(store, (2,))
