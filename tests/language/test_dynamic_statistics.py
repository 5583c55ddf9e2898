"""Statistics of dynamic evaluation on disk: interruptions, kills, and two processes."""

import os
import signal
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch

from lm.disk.filelock import FileLock
from lm.errors import Interrupted, StorageError
from lm.language.dynamic import dynamic, run_statistics
from lm.language.trained import TrainedLm
from lm.runs.checkpoint import CheckpointStore
from tests.support.tiny_lm import write_run


def test_interrupted_statistics_are_gone_on_with(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", lines=(400, 10, 10))
    (tmp_path / "other").mkdir()
    whole, _ = run_statistics(TrainedLm.load(run), tmp_path / "other")
    trained, done = TrainedLm.load(run), [0]

    def stop(at: int, total: int) -> None:
        done.append(at)
        if at == 3:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted, match="interrupted by SIGTERM; the same command resumes it"):
        run_statistics(trained, run, progress=stop)
    resumed, _ = run_statistics(trained, run, progress=lambda at, total: done.append(at))
    assert done == [*range(whole.windows + 1)], "the third window was kept too"
    assert all(torch.equal(resumed.squares[name], whole.squares[name]) for name in whole.squares)


def test_whole_statistics_are_settled_after_a_kill(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", lines=(400, 10, 10))
    whole, _ = run_statistics(TrainedLm.load(run), run)
    store = CheckpointStore(run / "dynamic" / "statistics")
    store.commit(whole.windows - 1, {}, {}, {})  # as a power failure leaves it, with the commit before
    run_statistics(TrainedLm.load(run), run)
    assert store.committed() == [whole.windows]


def test_discarded_statistics_are_away_for_certain_before_they_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure would otherwise leave a half deleted commit under its old name, which is damage."""
    run = write_run(tmp_path / "run", lines=(400, 10, 10))
    run_statistics(TrainedLm.load(run), run)
    done: list[str] = []

    def noted(name: str) -> Any:
        function = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            done.append(name)
            return function(*arguments, **options)

        return call

    for name in ("rename", "fsync", "unlink"):
        monkeypatch.setattr(os, name, noted(name))
    run_statistics(TrainedLm.load(run), run, window=3)
    assert [name for name, _ in groupby(done)][:3] == ["rename", "fsync", "unlink"]


def test_two_processes_never_write_the_same_statistics(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", lines=(120, 10, 10))
    folder = run / "dynamic"
    folder.mkdir()
    lock = FileLock(folder / "lock")
    with lock, pytest.raises(StorageError, match=r"run/dynamic: another `lm dynamic`") as error:
        dynamic(run)
    assert "\n" not in str(error.value)
    assert [path.name for path in folder.iterdir()] == ["lock"]

    def held() -> bool:
        free = lock.acquire(wait=False)
        lock.release()
        return not free

    seen: list[bool] = []
    dynamic(run, progress=lambda done, total: seen.append(held()))
    assert seen[0] is True
    assert seen[-1] is False, "evaluating alone keeps nobody waiting"
