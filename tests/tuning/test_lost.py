"""Searches that are killed, stopped or damaged where it is easily lost."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

from lm.engine.journal import Journal
from lm.errors import Interrupted
from lm.tuning.trials import Trials
from tests.support.tiny_search import N, plan, runs_of, search


def test_a_kill_between_the_end_of_a_training_and_its_record_loses_nothing(
    folder: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, planned = folder / "search", plan(folder)
    with monkeypatch.context() as patch:
        patch.setattr(Trials, "finish", lambda *ignored: (_ for _ in ()).throw(KeyError))
        with pytest.raises(KeyError):
            search(place, planned, N)
    assert search(place, planned, 3) == undisturbed[0][:3]
    assert runs_of(place, 3) == undisturbed[1][:3]


def test_a_signal_after_the_last_validation_of_a_trial_ends_the_search(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, planned = folder / "search", plan(folder, prune=False)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "ended", lambda *ignored: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(Interrupted):
            search(place, planned, 3)
    assert [row["state"] for row in Trials(place, planned.space, "tpe", 1).rows()] == ["running"]
    assert [row["state"] for row in search(place, planned, 3)] == ["finished"] * 3


def test_a_journal_that_has_lost_its_end_is_told(folder: Path, undisturbed: Any) -> None:
    place, planned, notes = folder / "search", plan(folder), list[str]()
    assert search(place, planned, 3, notes.append) == undisturbed[0][:3]
    assert not [line for line in notes if line.startswith("warning")]
    (place / "journal.log").write_bytes(b"garbage")
    search(place, planned, 3, notes.append)
    told = f"warning: {place / 'journal.log'}: has lost 3 trials, whose runs are there"
    assert [line for line in notes if line.startswith(told)]
    assert runs_of(place, 3) == undisturbed[1][:3]
