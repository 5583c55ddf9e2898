"""Trainings by several processes: the bits of one process, and one line where something is wrong."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lm.cli import main
from lm.runs.checkpoint import CheckpointStore
from tests.support.forked import ranks
from tests.support.shared_training import LM, trained
from tests.support.tiny_talk import TALK, write_talk
from tests.support.tiny_training import write_corpus

HEADS = {
    "mos": (),
    "softmax": ("head.kind=softmax", "head.components=1"),
    "doc": ("head.kind=doc", "head.lower_components=[1]"),
    "few-streams": ("train.batch_size=2", "window.random=true", "window.rescale_lr=true"),  # empty shards
    "accumulated": ("train.accumulate=3", "window.random=true", "window.rescale_lr=true"),
    "transformer": (
        "model.trunk=transformer",
        "model.hidden_sizes=[8,8]",
        "model.attention_span=9",
        "transformer.heads=2",
        "model.weight_dropout=0.0",
        "window.state_reset=0.3",
    ),
    "nt-asgd": ("optim.name=sgd", "optim.average=uniform", "optim.average_trigger=1", "train.max_steps=24"),
    "muon": ("optim.name=muon", "window.partial_shuffle=true", "model.bigrams=31"),
}


DIALOG_HEADS = {
    "softmax": (),
    "mos": ("optim.average=ema",),
    "doc": ("optim.name=sgd", "optim.average=uniform", "optim.average_trigger=1", "train.validate_every=1"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_corpus(tmp_path, LM, train=120, valid=30, longest=9)


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    return write_talk(tmp_path)


def test_shards_change_no_learning_rate(
    folder: Path, ending: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of random length scale it, by their mean where an update has several."""
    monkeypatch.chdir(folder)
    settings = ("train.accumulate=3", "window.random=true", "window.rescale_lr=true", "train.log_every=1")
    rates = []
    for shards in (1, 4):
        line = [part for one in (*settings, f"train.shards={shards}") for part in ("--set", one)]
        assert ending(main, "train", "tiny.toml", "--run", f"run-{shards}", *line)[0] == 0
        log = map(json.loads, Path(f"run-{shards}/metrics.jsonl").read_text().splitlines())
        rates.append([record["lr"] for record in log if record["split"] == "train"])
    assert len(set(rates[0])) > 1
    assert rates[0] == pytest.approx(rates[1], rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("settings", HEADS.values(), ids=HEADS)
def test_every_number_of_processes_gives_the_bits_of_one(folder: Path, settings: tuple[str, ...]) -> None:
    alone = trained(folder, "run-1", 1, *settings)
    for processes in (2, 4):
        assert trained(folder, f"run-{processes}", processes, *settings) == alone


@pytest.mark.slow
@pytest.mark.parametrize("head", DIALOG_HEADS)
def test_dialog_models_have_the_bits_of_one_process(talk: Path, head: str) -> None:
    settings = (*TALK, *DIALOG_HEADS[head])
    alone = trained(talk, "run-1", 1, *settings, config=f"smalltalk_{head}")
    for processes in (2, 4):
        assert trained(talk, f"run-{processes}", processes, *settings, config=f"smalltalk_{head}") == alone


def in_sittings(
    folder: Path, run: str, sittings: dict[int, int], *settings: str, config: str = "tiny.toml"
) -> tuple[str, bytes]:
    """The outcome of a training that stops at steps, each reached by a number of processes."""
    kept = [setting for setting in settings if not setting.startswith("train.max_steps")]
    for step, processes in sittings.items():
        found = trained(folder, run, processes, *kept, f"train.max_steps={step}", config=config)
    return found


@pytest.mark.parametrize(
    ("name", "sittings"),
    [
        ("mos", {3: 4, 5: 1, 6: 2}),
        ("transformer", {3: 2, 5: 1, 6: 4}),
        pytest.param("doc", {3: 4, 5: 2, 6: 1, 7: 4}, marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_with_any_number_of_processes(
    folder: Path, name: str, sittings: dict[int, int]
) -> None:
    """Each number takes over the carried states of the one before, gathered at its last checkpoint."""
    mixed = in_sittings(folder, "mixed", sittings, *HEADS[name])
    assert mixed == in_sittings(folder, "alone", dict.fromkeys(sittings, 1), *HEADS[name])


def elsewhere(rank: int, arguments: list[str]) -> list[str]:
    """The arguments of a rank on a machine without the run folder."""
    return [*arguments, "--run", f"folder-of-{rank}"]


def test_a_run_whose_folder_only_rank_0_has_goes_on(folder: Path) -> None:
    """With word vectors, which only a new run reads."""
    (folder / "vectors.txt").write_text("the 1 2 3 4 5 6\n")
    settings = ["--set", "model.vectors=vectors.txt"]
    for steps in (2, 4):
        line = ("lm", "train", "tiny.toml", *settings, "--set", f"train.max_steps={steps}")
        with ranks(folder, 2, *line, prepare=elsewhere) as started:
            assert started.ended().codes == [0, 0], started.output
    assert not (folder / "folder-of-1").exists()
    assert CheckpointStore.of(folder / "folder-of-0").open("last").step == 4


def test_a_dialog_model_goes_on_with_any_number_of_processes(talk: Path) -> None:
    mixed = in_sittings(talk, "mixed", {2: 4, 4: 1, 5: 2}, *TALK, config="smalltalk_mos")
    assert mixed == in_sittings(talk, "alone", dict.fromkeys((2, 4, 5), 1), *TALK, config="smalltalk_mos")


@pytest.mark.slow
def test_fast_sums_agree_to_rounding(folder: Path) -> None:
    trained(folder, "exact", 4, "optim.name=sgd")
    trained(folder, "fast", 4, "optim.name=sgd", "train.reduction=fast")
    exact, fast = (CheckpointStore(folder / run / "checkpoints").weights("last") for run in ("exact", "fast"))
    for name, tensor in exact.items():
        assert (tensor - fast[name]).abs().max() <= 1e-6 * max(1.0, float(tensor.abs().max())), name
