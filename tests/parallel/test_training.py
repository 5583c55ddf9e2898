"""Trainings by several processes: the bits of one process, and one line where something is wrong."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lm.cli import main
from lm.runs.checkpoint import CheckpointStore
from tests.support.launching import command, ended, started, wait_for, workers
from tests.support.tiny_talk import TALK, write_talk
from tests.support.tiny_training import write_corpus

LM = """
[data]
train = "train.txt"
valid = "valid.txt"
test = "valid.txt"
valid_streams = 2
[window]
length = 7
[model]
embedding_size = 6
hidden_sizes = [7, 6]
hidden_dropout = 0.3
input_dropout = 0.2
weight_dropout = 0.2
[head]
kind = "mos"
components = 3
latent_dropout = 0.2
[optim]
lr = 0.01
average = "ema"
[train]
batch_size = 9
max_steps = 6
validate_every = 4
checkpoint_every = 2
shards = 4
device = "cpu"
"""
HEADS = {
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
        "train.max_steps=4",
    ),
    "nt-asgd": ("optim.name=sgd", "optim.average=uniform", "optim.average_trigger=1", "train.max_steps=24"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_corpus(tmp_path, LM, train=120, valid=30, longest=9)


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    return write_talk(tmp_path)


def trained(
    folder: Path, run: str, processes: int, *overrides: str, config: str = "tiny.toml"
) -> tuple[str, bytes]:
    """All that the last commit holds, as a hash, and the log."""
    settings = [part for override in overrides for part in ("--set", override)]
    family = "lm" if config == "tiny.toml" else "dialog"
    line = command(family, "train", config, "--run", run, "--processes", str(processes), *settings)
    end = ended(folder, line)
    assert end.returncode == 0, end.stderr
    return outcome(folder / run)


def outcome(run: Path) -> tuple[str, bytes]:
    store = CheckpointStore(run / "checkpoints")
    return store.open("last").state_sha256, (run / "metrics.jsonl").read_bytes()


def test_two_processes_give_the_bits_of_one(
    folder: Path, ending: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, carried state and averaged weights; one process goes on where two have stopped."""
    monkeypatch.chdir(folder)
    for run in ("one", "two"):
        first, last = (("train", "tiny.toml", "--run", run, "--set", f"train.max_steps={n}") for n in (4, 6))
        if run == "one":
            assert ending(main, *first)[0] == 0
        else:
            end = ended(folder, command("lm", *first, "--processes", "2"))
            assert end.returncode == 0, end.stderr
        assert ending(main, *last)[0] == 0
    assert outcome(folder / "one") == outcome(folder / "two")


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
@pytest.mark.parametrize("head", ["softmax", "mos"])
def test_dialog_models_have_the_bits_of_one_process(talk: Path, head: str) -> None:
    alone = trained(talk, "run-1", 1, *TALK, config=f"smalltalk_{head}")
    for processes in (2, 4):
        assert trained(talk, f"run-{processes}", processes, *TALK, config=f"smalltalk_{head}") == alone


@pytest.mark.slow
def test_a_run_goes_on_with_any_number_of_processes(folder: Path) -> None:
    for processes, steps in ((4, 5), (2, 9), (1, 13), (4, 16)):
        found = trained(folder, "mixed", processes, f"train.max_steps={steps}")
        assert found == trained(folder, "alone", 1, f"train.max_steps={steps}")


@pytest.mark.slow
def test_fast_sums_agree_to_rounding(folder: Path) -> None:
    trained(folder, "exact", 4, "optim.name=sgd")
    trained(folder, "fast", 4, "optim.name=sgd", "train.reduction=fast")
    exact, fast = (CheckpointStore(folder / run / "checkpoints").weights("last") for run in ("exact", "fast"))
    for name, tensor in exact.items():
        assert (tensor - fast[name]).abs().max() <= 1e-6 * max(1.0, float(tensor.abs().max())), name


@pytest.mark.slow
def test_a_killed_process_brings_all_back(folder: Path) -> None:
    """``torchrun --max-restarts`` starts all again, and the end is that of an undisturbed run."""
    settings = ("--set", "train.max_steps=300", "--set", "train.checkpoint_every=20")
    torchrun = ("--nproc-per-node", "2", "--max-restarts", "2")
    line = command("lm", "train", "tiny.toml", *settings, torchrun=torchrun)
    with started(folder, line) as process:
        wait_for(folder / "runs/tiny/checkpoints/step-00000040")
        os.kill(workers(process)[-1], signal.SIGKILL)
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    alone = trained(folder, "alone", 1, "train.max_steps=300", "train.checkpoint_every=20")
    assert outcome(folder / "runs/tiny") == alone


@pytest.mark.slow
def test_a_silent_process_ends_the_others_and_is_named(folder: Path) -> None:
    settings = ("--set", "train.max_steps=100000", "--set", "train.exchange_minutes=0.1")
    with started(folder, command("lm", "train", "tiny.toml", "--processes", "2", *settings)) as process:
        wait_for(folder / "runs/tiny/checkpoints/step-00000004")
        stopped = workers(process)[-1]
        os.kill(stopped, signal.SIGSTOP)
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 7, output
    assert "is lost, or silent for train.exchange_minutes = 0.1; run the same command again" in output


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["launcher", "rank"])
def test_a_signal_saves_once_and_ends_all(folder: Path, whom: str) -> None:
    line = command("lm", "train", "tiny.toml", "--processes", "2", "--set", "train.max_steps=100000")
    with started(folder, line) as process:
        wait_for(folder / "runs/tiny/checkpoints/step-00000004")
        os.kill(process.pid if whom == "launcher" else workers(process)[-1], signal.SIGTERM)
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 75, output
    assert output.count("run the same command again to resume") == 1
    assert "internal error" not in output
