"""Commits: exact round trips, and no kill, power loss, full disk, bit flip or hostile file gets through."""

import errno
import hashlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import faults
import pytest
import torch
from torch import Tensor

from lm import commit as commit_module
from lm.checkpoint import CheckpointStore, Commit, average_tensors
from lm.errors import StorageError
from lm.storage import canonical_json

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool)


@pytest.fixture(autouse=True)
def quick_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fsync does shows only when the power fails; :class:`faults.PowerLoss` sees where it is called."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


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


def save(store: CheckpointStore, step: int) -> Commit:
    return store.commit(step, groups_of(step), {"step": step, "lr": 0.1}, {"seconds": step + 0.5})


def state_sha256(step: int, folder: Path) -> str:
    """What a commit of this step has when nothing went wrong."""
    return save(CheckpointStore(folder / f"reference-{step}"), step).state_sha256


def holds(commit: Commit, step: int) -> bool:
    expected = groups_of(step)["model"]
    found = commit.tensors("model")
    return commit.step == step and all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """A store that has committed steps 1 and 2."""
    store = CheckpointStore(tmp_path / "checkpoints")
    save(store, 1)
    save(store, 2)
    return store


def one_line(error: pytest.ExceptionInfo[StorageError], *words: str) -> None:
    message = str(error.value)
    assert message.isprintable(), message
    for word in words:
        assert word in message


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    base = torch.randn(4, 6)
    tensors = {
        "dense": base,
        "tied": base,
        "transposed": base.t(),
        "slice": base[1:3, ::2],
        "expanded": base[:1].expand(5, 6),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "special": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
        "name with spaces/é": torch.ones(2),
    } | {str(dtype): torch.arange(7).to(dtype) for dtype in DTYPES}
    commit = CheckpointStore(tmp_path).commit(0, {"model": tensors}, {}, {})
    loaded = commit.tensors("model")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert (
            loaded[name]
            .reshape(-1)
            .view(torch.uint8)
            .equal(tensor.reshape(-1).contiguous().view(torch.uint8))
        )


def test_state_and_facts_come_back_and_empty_groups_are_left_out(store: CheckpointStore) -> None:
    commit = store.open("last")
    assert commit.state == {"step": 2, "lr": 0.1}
    assert commit.facts == {"seconds": 2.5}
    assert commit.groups == ["model", "rng"]
    assert commit.tensors("task") == {}
    with pytest.raises(ValueError, match="JSON"):
        store.commit(3, {}, {"loss": float("nan")}, {})
    assert sorted(path.name for path in store.folder.iterdir()) == [
        "last.json",
        "step-00000001",
        "step-00000002",
    ]


@pytest.mark.gpu
def test_tensors_of_a_gpu_are_saved(tmp_path: Path) -> None:
    weight = torch.randn(3, 4, device="cuda")
    loaded = (
        CheckpointStore(tmp_path)
        .commit(0, {"model": {"a": weight, "b": weight.t()}}, {}, {})
        .tensors("model")
    )
    assert loaded["a"].equal(weight.cpu())
    assert loaded["b"].equal(weight.t().cpu())


def test_state_sha256_is_about_step_tensors_and_state_alone(tmp_path: Path) -> None:
    def sha(step: int, weight: float, state: float, seconds: float) -> str:
        folder = tmp_path / str(random.random())
        groups = {"model": {"w": torch.tensor([weight])}}
        return CheckpointStore(folder).commit(step, groups, {"lr": state}, {"seconds": seconds}).state_sha256

    same = sha(1, 0.1, 0.2, 1.0)
    assert sha(1, 0.1, 0.2, 99.0) == same
    assert len({same, sha(2, 0.1, 0.2, 1.0), sha(1, 0.1000001, 0.2, 1.0), sha(1, 0.1, 0.20000001, 1.0)}) == 4


def reproduce(folder: Path) -> str:
    """A commit of what comes out of a set in another order in every process."""
    tensors = {name: torch.full((3,), len(name)) for name in {"b", "alpha", "gamma/exp_avg", "x" * 9, "i"}}
    groups = {"model": tensors, "optimizer": {name: tensor / 3 for name, tensor in tensors.items()}}
    return CheckpointStore(folder).commit(7, groups, dict.fromkeys(tensors, 1.5), {}).state_sha256


def test_state_sha256_is_the_same_in_every_process(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib, test_checkpoint; print(test_checkpoint.reproduce(pathlib.Path(sys.argv[1])))"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    search = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "there")],
        env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.strip() == reproduce(tmp_path / "here")


def test_committing_the_same_again_changes_nothing(store: CheckpointStore) -> None:
    manifest = store.folder / "step-00000002" / "manifest.json"
    before = manifest.stat()
    again = store.commit(2, groups_of(2), {"step": 2, "lr": 0.1}, {"seconds": 77.0})
    assert manifest.stat().st_ino == before.st_ino
    assert again.facts == {"seconds": 2.5}


@pytest.mark.parametrize("damaged", [False, True])
def test_another_commit_of_the_same_step_replaces_it(store: CheckpointStore, damaged: bool) -> None:
    if damaged:
        (store.folder / "step-00000002" / "model.safetensors").write_bytes(b"")
    store.commit(2, groups_of(5), {"step": 2}, {})
    commit = store.latest()
    assert commit is not None
    assert commit.step == 2
    assert commit.tensors("model")["bias"].equal(groups_of(5)["model"]["bias"])
    assert {path.name for path in store.folder.iterdir()} == {"step-00000001", "step-00000002", "last.json"}


def test_latest_falls_back_and_says_so(store: CheckpointStore) -> None:
    flip(store.folder / "step-00000002" / "rng.safetensors", 100)
    latest = store.latest()
    assert latest is not None
    assert holds(latest, 1)
    assert len(store.problems) == 1
    assert "step-00000002/rng.safetensors" in store.problems[0]
    assert [bool(report.problem) for report in store.verify_all()] == [True, False]


def test_a_store_without_commits_is_a_fresh_start_but_damage_everywhere_is_not(
    store: CheckpointStore,
) -> None:
    assert CheckpointStore(store.folder / "absent").latest() is None
    for report in store.verify_all():
        flip(report.path / "model.safetensors", 7)
    with pytest.raises(StorageError) as error:
        store.latest()
    one_line(error, "no checkpoint is intact", "model.safetensors", "start over")


def test_open_and_pointers(store: CheckpointStore) -> None:
    save(store, 3)
    with pytest.raises(StorageError) as error:
        store.open("best")
    one_line(error, "'best'", "step-3, step-2, step-1")
    store.point("best", [2, 1])
    assert store.pointed("best") == [2, 1]
    assert [store.open(which).step for which in ("best", "last", "step-1", "step-00000001")] == [2, 3, 1, 1]
    for which in ("step-9", "nonsense\x1b", "step-", "../step-1", ""):
        with pytest.raises(StorageError) as error:
            store.open(which)
        one_line(error, "step-3")
    store.prune([1, 2])
    assert store.open("last").step == 2, "a pointer to a commit that is gone"
    flip(store.folder / "step-00000002" / "state.json", 3)
    with pytest.raises(StorageError) as error:
        store.open("best")
    one_line(error, "state.json", "SHA-256", "choose another one by --checkpoint: step-1")
    for damaged in ('{"steps": ["../x"]}', '{"steps": [2', "[]"):
        (store.folder / "best.json").write_text(damaged)
        with pytest.raises(StorageError) as error:
            store.open("best")
        one_line(error, "best.json", "damaged; remove it, and name a checkpoint by --checkpoint")


def test_prune_deletes_only_after_verifying_what_stays(store: CheckpointStore) -> None:
    save(store, 3)
    flip(store.folder / "step-00000003" / "model.safetensors", 11)
    for keep in ([3, 2], []):
        with pytest.raises(StorageError):
            store.prune(keep)
        assert len(store.verify_all()) == 3
    store.prune([2])
    assert [(report.step, report.problem) for report in store.verify_all()] == [(2, "")]


def test_average_and_inference_weights(store: CheckpointStore) -> None:
    model, average = {"w": torch.tensor([1.0]), "buffer": torch.tensor([3])}, {"w": torch.tensor([5.0])}
    store.commit(3, {"model": model, "average": average}, {}, {})
    store.commit(4, {"model": model | {"w": torch.tensor([8.0])}}, {}, {})
    assert store.weights("step-3") == {"w": torch.tensor([5.0]), "buffer": torch.tensor([3])}
    assert store.weights("last")["w"] == 8
    store.point("best", [3, 4])
    assert store.weights("average") == {"w": torch.tensor([6.5]), "buffer": torch.tensor([3])}
    store.point("best", [3, 1])
    with pytest.raises(StorageError, match="different models"):
        store.weights("average")


def test_the_mean_is_taken_in_float64() -> None:
    sets = [{"w": torch.tensor([value], dtype=torch.bfloat16)} for value in (256.0, 1.0, 1.0, 2.0)]
    mean = average_tensors(iter(sets))["w"]
    assert mean.dtype == torch.bfloat16
    assert mean.item() == 65.0
    tied = average_tensors([{"w": torch.tensor([0.1])}] * 3)["w"]
    assert tied.equal(torch.tensor([0.1])), "the mean of equal weights is those weights"


# --- kills, power loss, full disks ---


def next_commit(store: CheckpointStore, step: int = 3) -> Callable[[], None]:
    """What the engine does at a checkpoint: commit, move the pointer, prune."""

    def action() -> None:
        save(store, step)
        store.point("best", step)
        store.prune([2, step])

    return action


def fresh_store(folder: Path) -> CheckpointStore:
    store = CheckpointStore(folder / "checkpoints")
    save(store, 1)
    save(store, 2)
    store.point("best", 1)
    return store


def survives(store: CheckpointStore, allowed: tuple[int, ...], go_on: bool = True) -> None:
    """The newest commit is one of those allowed and exact, and the run can go on from there."""
    latest = store.latest()
    assert latest is not None
    assert latest.step in allowed
    assert holds(latest, latest.step)
    assert not [report.problem for report in store.verify_all() if report.problem], "a kill is no damage"
    assert store.open("last").step in allowed
    store.pointed("best")
    store.clean()
    after = store.latest()
    assert after is not None
    assert after.state_sha256 == latest.state_sha256
    if not go_on:
        return
    next_commit(store)()
    names = {path.name for path in store.folder.iterdir()}
    assert names == {"step-00000002", "step-00000003", "last.json", "best.json"}
    assert holds(store.open("best"), 3)


def test_a_kill_at_any_file_operation_leaves_the_old_or_the_new_commit(tmp_path: Path) -> None:
    template = fresh_store(tmp_path / "template")
    total = len(faults.count_operations(next_commit(fresh_store(tmp_path / "count"))))
    assert total > 40
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
    loss = faults.PowerLoss(store.folder, next_commit(store))
    if sabotage:
        loss.without(sabotage)
    choose, target, count = random.Random(0), tmp_path / "state", 0
    for length in range(len(loss) + 1):
        for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
            loss.state(length, target, choose, share)
            survives(CheckpointStore(target), (2, 3), go_on=count % 3 == 0)
            shutil.rmtree(target)
            count += 1
    return count


def test_power_loss_at_any_operation_leaves_the_old_or_the_new_commit(tmp_path: Path) -> None:
    assert power_losses(tmp_path) > 200


@pytest.mark.parametrize("sabotage", ["sync_file", "sync_folder"])
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
    assert published < at("rename last.json") < at("rename best.json") < at("rename step-00000001.tmp")
    assert at("rename step-00000001.tmp") < at("rmdir step-00000001.tmp")


def test_a_full_disk_at_any_byte_leaves_the_old_commits(tmp_path: Path) -> None:
    store = fresh_store(tmp_path)
    total = sum(path.stat().st_size for path in (store.folder / "step-00000002").iterdir())
    before = {path: path.read_bytes() for path in store.folder.rglob("*") if path.is_file()}
    for room in [*range(0, total, 97), total - 1]:
        with pytest.raises(StorageError) as error:
            faults.fill_disk_after(room, lambda: save(store, 3))
        one_line(error, "step-00000003", "no space left on device; free 1 MB")
        assert {path: path.read_bytes() for path in store.folder.rglob("*") if path.is_file()} == before
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
        else:  # an unreadable pointer is replaced all the same
            assert holds(store.open("best"), 3)
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


# --- damage ---


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    bit %= 8 * len(data)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


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


# --- hostile files ---


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
    with pytest.raises(StorageError) as error:
        Commit.read(folder)
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


def header(value: object, length: int | None = None) -> bytes:
    text = json.dumps(value).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text


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
        store.pointed("last")
        store.weights("step-1")

    assert set(faults.count_operations(read)) <= {"open"}


def test_checking_needs_no_torch(store: CheckpointStore) -> None:
    program = (
        "import sys; from pathlib import Path; from lm.checkpoint import CheckpointStore\n"
        "assert CheckpointStore(Path(sys.argv[1])).latest().step == 2; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(store.folder)], check=True)
