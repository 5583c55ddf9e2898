"""A store of checkpoints, a trained run, and a disk that does not wait."""

import os
import shutil
from pathlib import Path

import pytest

from dialog.evaluate import evaluate
from dialog.train import train
from lm.engine.events import no_report
from lm.runs.checkpoint import CheckpointStore
from tests.support.talk_run import TALK, settings
from tests.support.tiny_store import two_commits


@pytest.fixture
def quick_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fsync does shows only when the power fails; :class:`power.Recorder` sees where it is called."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def store(tmp_path: Path, quick_fsync: None) -> CheckpointStore:
    """A store with two commits."""
    return two_commits(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained and evaluated; tests copy it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "talk.txt").write_text(TALK)
    train(settings(folder), folder / "run", no_report)
    evaluate(folder / "run")
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained run."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"
