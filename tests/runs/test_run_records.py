"""Records of a run: its log, runs without a record, hostile records, and keys that became resumable."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dialog.config import DialogConfig
from dialog.train import train
from lm.config.load import override
from lm.engine.events import Event, Note, no_report
from lm.errors import ConfigError, StorageError
from lm.runs.check import changed_log, check_run
from lm.runs.checkpoint import CheckpointStore
from lm.runs.inputs import RESUMABLE, opened_run
from tests.support.damage import (
    forget_record,
    rewrite_manifest,
    rewrite_state,
)
from tests.support.talk_run import attempted, found, settings, used


def weights(run: Path) -> dict[str, bytes]:
    last = CheckpointStore(run / "checkpoints").open("last")
    return {group: (last.path / f"{group}.safetensors").read_bytes() for group in last.groups}


def test_a_log_that_is_not_what_was_logged_is_refused(run: Path, trained: Path) -> None:
    log = run / "metrics.jsonl"
    whole = log.read_bytes()
    assert changed_log(run) == ""
    for damaged in (whole.replace(b'"step": 1', b'"step": 7', 1), whole[:-30], whole[1:]):
        log.write_bytes(damaged)
        assert "metrics.jsonl: edited or damaged" in changed_log(run)
        with pytest.raises(StorageError, match=r"metrics\.jsonl: .*restore it from a copy, or remove it"):
            train(settings(trained.parent), run, no_report)
    log.write_bytes(whole + b'{"step": 5}\n{"torn')
    assert all("which resuming drops" in line for line in found(run))
    train(settings(trained.parent, "train.max_steps=6"), run, no_report)
    assert not found(run)


@pytest.mark.parametrize("gone", ["missing", "empty"])
def test_a_training_whose_log_is_gone_goes_on_to_the_same_weights(
    run: Path, trained: Path, gone: str, tmp_path: Path
) -> None:
    more = settings(trained.parent, "train.max_steps=7")
    shutil.copytree(run, tmp_path / "whole")
    train(more, tmp_path / "whole", no_report)
    (run / "metrics.jsonl").unlink() if gone == "missing" else os.truncate(run / "metrics.jsonl", 0)
    assert "metrics.jsonl" in found(run)[0]
    notes: list[str] = []

    def report(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.line)

    train(settings(trained.parent), run, report)  # nothing to train, and yet all is well then
    assert any("metrics.jsonl was missing" in note for note in notes)
    assert not found(run)
    train(more, run, no_report)
    assert weights(run) == weights(tmp_path / "whole")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[0] == {"step": 4, "epoch": lines[0]["epoch"], "split": "event", "event": "log lost"}
    kept = (tmp_path / "whole/metrics.jsonl").read_text().splitlines()
    assert [json.dumps(line) for line in lines[1:]] == kept[-len(lines) + 1 :]
    assert not found(run)


def test_a_run_without_a_record_opens_and_checks_but_does_not_go_on(run: Path, trained: Path) -> None:
    expected = used(run)
    forget_record(run)
    assert used(run) == expected
    result = check_run(run)
    assert result.problems == []
    assert "imported" in result.notes[0]
    unreadable = run.with_name("unreadable")
    shutil.copytree(run, unreadable)
    for state in (unreadable / "checkpoints").glob("step-*/state.json"):
        state.write_bytes(b"{")
    assert "no checkpoint can be read" in check_run(unreadable).notes[0]
    with pytest.raises(StorageError, match="no record of its run; train in a new --run folder"):
        train(settings(trained.parent, "train.max_steps=6"), run, no_report)
    for name in ("config.json", "vocabulary.json"):
        damaged = run.with_name(name)
        shutil.copytree(trained, damaged)
        forget_record(damaged)
        (damaged / name).unlink()
        assert name in check_run(damaged).problems[0]


HOSTILE: list[Any] = [
    3, [], {}, {"files": 3}, {"files": {"../../etc/passwd": "0" * 64}}, {"files": {"config.json": 3}},
    {"files": {}, "config": [], "free": [], "log": {}}, {"files": {}, "config": {}, "free": 3, "log": {}},
    {"files": {}, "config": {}, "free": [], "log": {"size": -1, "sha256": "0" * 64}},
    {"files": {}, "config": {}, "free": [], "log": {"size": 10**30, "sha256": "0" * 64}},
    {"files": {"lock": "0" * 64}, "config": {}, "free": [], "log": {"size": 1, "sha256": "0" * 64}},
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hostile_record_is_refused_in_a_line(run: Path, trained: Path, number: int) -> None:
    for commit in run.glob("checkpoints/step-*"):
        rewrite_manifest(commit, lambda manifest: manifest["facts"].update(run=HOSTILE[number]))
    for action in (
        lambda: used(run),
        lambda: check_run(run),
        lambda: train(settings(trained.parent), run, no_report),
    ):
        with pytest.raises(StorageError, match="foreign") as error:
            action()
        assert str(error.value).isprintable()


@pytest.mark.parametrize("best", [3, [3], [[1]], [["a", "b"]], [[0.1, [2]]], [[0.1, -1]], {"a": 1}, None])
def test_hostile_lists_of_best_steps_are_refused(run: Path, best: Any) -> None:
    for commit in run.glob("checkpoints/step-*"):
        rewrite_state(commit, lambda state: state["progress"].update(best=best))
    assert attempted(run) is None
    told = ["lists no best checkpoints; the checkpoint is foreign"] if best != [] else []
    problems = [problem.partition(": ")[2].partition("; choose")[0] for problem in check_run(run).problems]
    assert [problem.partition("; it says")[0] for problem in problems] == told


def test_a_key_that_came_to_be_resumable_locks_no_run_out(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished run is resumed with another value of it: config.json changes, and there is no new commit."""
    changed = settings(run.parent, "train.log_every=3")
    changed = override(changed, _splits(run), DialogConfig, sections=("data",))
    with pytest.raises(ConfigError, match=r"train\.log_every = 3 \(was 1\)"):
        train(changed, run, no_report)
    keys = RESUMABLE | {"train.log_every"}
    monkeypatch.setattr("lm.runs.inputs.RESUMABLE", keys)
    monkeypatch.setattr("lm.engine.session.RESUMABLE", keys)
    train(changed, run, no_report)
    assert opened_run(run, DialogConfig)[0].train.log_every == 3
    assert check_run(run).problems == []


def test_a_training_goes_on_without_the_device_that_its_config_names(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of a run, on a machine without CUDA."""
    splits = _splits(run)
    monkeypatch.setattr("lm.engine.device.chosen_device", lambda train: torch.device("cpu"))
    on_cuda = override(settings(run.parent, "train.device=cuda"), splits, DialogConfig, sections=("data",))
    train(on_cuda, run.parent / "gpu", no_report)
    monkeypatch.undo()
    on_cpu = override(
        settings(run.parent, "train.device=cpu", "train.max_steps=9"),
        splits,
        DialogConfig,
        sections=("data",),
    )
    assert train(on_cpu, run.parent / "gpu", no_report).step == 9


def _splits(run: Path) -> list[str]:
    """The corpus that a run names, as overrides."""
    data = opened_run(run, DialogConfig)[0].data
    return [f"data.{split}={getattr(data, split)}" for split in ("train", "valid", "test")]
