"""A store of checkpoints, and a disk that does not wait."""

import os
from pathlib import Path

import pytest

from lm.runs.checkpoint import CheckpointStore
from tests.support.tiny_store import two_commits


@pytest.fixture
def quick_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fsync does shows only when the power fails; :class:`power.Recorder` sees where it is called."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def store(tmp_path: Path, quick_fsync: None) -> CheckpointStore:
    """A store with two commits."""
    return two_commits(tmp_path)
