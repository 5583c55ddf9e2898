"""Properties of the device of a training."""

import os

import pytest
import torch

from lm.engine.config import TrainConfig
from lm.engine.device import configure_device, device_here, load_note


@pytest.mark.parametrize(
    ("load", "threads", "told"),
    [(8.4, 2, True), (3.0, 2, True), (2.4, 2, False), (0.1, 2, False), (8.4, 1, False)],
)
def test_a_load_above_the_processors_gives_a_hint_on_threads(
    load: float, threads: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    note = load_note()
    assert bool(note) == told
    if told:
        assert note.startswith(f"note: the load is {load:.1f} on 2 processors")
        assert "train.threads=1" in note


def test_more_threads_than_processors_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert load_note().startswith("note: 64 threads on 2 processors wait for each other; in a new run, set")


def test_the_threads_of_a_training_are_not_those_of_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    train = TrainConfig(threads=3, device="cpu")
    assert device_here(train) == torch.device("cpu")
    assert not chosen
    configure_device(train)
    assert chosen == [3]
