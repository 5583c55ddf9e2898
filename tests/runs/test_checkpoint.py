"""Commits: exact round trips, hashes that repeat, names and pruning, averages of weights."""

import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
import torch

from lm.errors import ConfigError, StorageError
from lm.runs.checkpoint import CheckpointStore
from lm.runs.commit import Commit, _require_memory, average_tensors
from tests.support.tiny_store import flip, groups_of, holds, one_line, save

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool)


pytestmark = pytest.mark.usefixtures("quick_fsync")


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
    assert sorted(path.name for path in store.folder.iterdir()) == ["step-00000001", "step-00000002"]


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
        "import sys, pathlib; from tests.runs.test_checkpoint import reproduce;"
        " print(reproduce(pathlib.Path(sys.argv[1])))"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    search = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
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
    assert {path.name for path in store.folder.iterdir()} == {"step-00000001", "step-00000002"}


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
    for path in store.folder.glob("step-*"):
        flip(path / "model.safetensors", 7)
    with pytest.raises(StorageError) as error:
        store.latest()
    one_line(error, "no checkpoint is intact", "model.safetensors", "start over")


def test_names_of_commits(store: CheckpointStore) -> None:
    assert store.open("best").step == 2, "of a commit that no training wrote"
    save(store, 3, best=[])
    with pytest.raises(StorageError) as error:
        store.open("best")
    one_line(error, "no best checkpoint before the first validation; choose", "step-3, step-2, step-1")
    save(store, 3, best=[2, 1])
    assert store.steps("average-best") == [2, 1]
    assert [store.open(which).step for which in ("best", "last", "step-1", "step-00000001")] == [2, 3, 1, 1]
    with pytest.raises(StorageError) as error:
        store.open("step-9")
    one_line(error, "'step-9'", "step-3")
    for which in ("nonsense\x1b", "step-", "../step-1", ""):
        with pytest.raises(ConfigError) as misspelt:
            store.open(which)
        assert (
            "must be last, best, average-best or step-N; choose another one by --checkpoint: step-3"
            in str(misspelt)
        )
    store.prune([1, 2])
    assert store.open("last").step == 2
    flip(store.folder / "step-00000002" / "state.json", 3)
    with pytest.raises(StorageError) as error:
        store.open("best")
    one_line(error, "state.json", "SHA-256", "choose another one by --checkpoint: step-1")
    flip(store.folder / "step-00000001" / "state.json", 3)
    with pytest.raises(StorageError) as error:
        store.open("best")
    one_line(error, "state.json", "SHA-256", "; no other checkpoint is intact: restore one from a copy")


def test_a_damaged_state_of_the_newest_commit_names_a_remedy_for_the_best(store: CheckpointStore) -> None:
    for step in (1, 2, 3):
        save(store, step, best=[step])
    flip(store.folder / "step-00000003" / "state.json", 3)
    with pytest.raises(StorageError) as error:
        store.open("best")
    one_line(error, "step-00000003", "choose another one by --checkpoint: step-2, step-1")


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.open("best").step,
        lambda store: store.weights("average-best")["bias"].tolist(),
        lambda store: store.fingerprint("average-best"),
        lambda store: store.steps("best"),
        lambda store: [(report.step, report.problem) for report in store.verify_all()],
    ],
)
def test_a_reader_sees_the_commits_of_a_training_that_goes_on(
    read: Callable[[CheckpointStore], object],
    call: int,
    store: CheckpointStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which replaces them after the reader has listed them once or several times: before or after is read."""
    save(store, 2, best=[1, 2])
    before, folders, calls = read(store), CheckpointStore._folders, 0

    def late(self: CheckpointStore) -> list[tuple[int, Path]]:
        nonlocal calls
        found, calls = folders(self), calls + 1
        if calls == call:
            save(store, 3, best=[3, 1])
            store.prune([3, 1])
        return found

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "_folders", late)
        found = read(store)
    assert found in (before, read(store))


def test_a_step_that_is_committed_again_while_it_is_read_is_read_anew(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, again = Commit.inference_tensors, list[bool]()

    def late(commit: Commit) -> Any:
        if not again:
            again.append(True)
            store.commit(2, groups_of(5), {}, {})
        return read(commit)

    monkeypatch.setattr(Commit, "inference_tensors", late)
    assert store.weights("last")["bias"].equal(groups_of(5)["model"]["bias"])


def test_weights_that_are_pruned_while_they_are_read_are_read_anew(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 2, best=[1])
    read = Commit.inference_tensors

    def late(commit: Commit) -> Any:
        if commit.step == 1:
            save(store, 3, best=[3])
            store.prune([3])
        return read(commit)

    with monkeypatch.context() as patch:
        patch.setattr(Commit, "inference_tensors", late)
        found = store.weights("best")
    assert torch.equal(found["bias"], store.weights("step-3")["bias"])


def test_prune_deletes_only_after_verifying_what_stays(store: CheckpointStore) -> None:
    save(store, 3)
    flip(store.folder / "step-00000003" / "model.safetensors", 11)
    for keep in ([3, 2], []):
        with pytest.raises(StorageError):
            store.prune(keep)
        assert len(store.verify_all()) == 3
    store.prune([2])
    assert [(report.step, report.problem) for report in store.verify_all()] == [(2, None)]


def test_average_and_inference_weights(store: CheckpointStore) -> None:
    model, average = {"w": torch.tensor([1.0]), "buffer": torch.tensor([3])}, {"w": torch.tensor([5.0])}
    store.commit(3, {"model": model, "average": average}, {}, {})
    last = {"model": model | {"w": torch.tensor([8.0])}}
    store.commit(4, last, {"progress": {"best": [[1.0, 3], [2.0, 4]]}}, {})
    assert store.weights("step-3") == {"w": torch.tensor([5.0]), "buffer": torch.tensor([3])}
    assert store.weights("last")["w"] == 8
    assert store.weights("average-best") == {"w": torch.tensor([6.5]), "buffer": torch.tensor([3])}
    store.commit(4, last, {"progress": {"best": [[1.0, 3], [2.0, 1]]}}, {})
    with pytest.raises(StorageError, match="different models"):
        store.weights("average-best")


def test_the_mean_is_taken_in_float64() -> None:
    sets = [{"w": torch.tensor([value], dtype=torch.bfloat16)} for value in (256.0, 1.0, 1.0, 2.0)]
    mean = average_tensors(iter(sets))["w"]
    assert mean.dtype == torch.bfloat16
    assert mean.item() == 65.0
    tied = average_tensors([{"w": torch.tensor([0.1])}] * 3)["w"]
    assert tied.equal(torch.tensor([0.1])), "the mean of equal weights is those weights"


def test_asking_for_memory_takes_none() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _require_memory(2048 * before)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1.5 * before
    with pytest.raises(MemoryError):
        _require_memory(1 << 60)


def test_no_other_checkpoint_replaces_a_best_one_that_is_missing(store: CheckpointStore) -> None:
    for step in (1, 2, 3):
        save(store, step, best=[1] if step == 1 else [2, 1])
    assert store.open("best").step == 2
    rmtree(store.folder / "step-00000002")
    for use in (store.open, store.weights, store.fingerprint):
        with pytest.raises(StorageError) as error:
            use("best")
        one_line(error, "step 2 of the best is missing; restore it", "by --checkpoint: step-3, step-1")
    with pytest.raises(StorageError, match="step 2 of the best is missing"):
        store.weights("average-best")
    assert store.open("last").step == 3


def test_a_name_that_the_system_refuses_is_told_in_a_line(tmp_path: Path) -> None:
    store = CheckpointStore.of(tmp_path / ("x" * 300))
    with pytest.raises(StorageError, match="file name too long"):
        store.fingerprint("best")
