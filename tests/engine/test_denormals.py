"""Denormal numbers are 0 while a model is trained or evaluated, and numbers again afterwards."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dialog.batches import list_examples
from dialog.corpora.corpus import load_dialogs
from dialog.decoding.config import DecodeConfig
from dialog.evaluate import evaluate as evaluate_dialog
from dialog.train import train
from dialog.trained import TrainedModel
from lm.engine.device import flushed_denormals
from lm.engine.events import Event
from lm.language.adaptation import DynamicSetting
from lm.language.dynamic import dynamic
from lm.language.evaluate import evaluate
from lm.studies.sweep import cosine_adam, descend
from tests.support.talk_run import TALK, settings
from tests.support.tiny_lm import write_run


def denormals_count() -> bool:
    """True if denormal numbers are not 0, to torch and to Python."""
    of_torch, of_python = bool((torch.full((64,), 1e-39) * 0.5).any()), sys.float_info.min / 2 > 0
    assert of_torch == of_python
    return of_torch


@pytest.fixture(autouse=True)
def able() -> Iterator[None]:
    """A processor that can flush denormal numbers."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormal numbers")
    torch.set_flush_denormal(False)
    yield
    assert denormals_count()


class Seen:
    """Whether denormal numbers counted, at every call of a reporter or of a progress."""

    def __init__(self) -> None:
        self.counted: set[bool] = set()

    def report(self, event: Event) -> None:
        self.counted.add(denormals_count())

    def progress(self, done: int, total: int) -> None:
        self.counted.add(denormals_count())


def test_they_are_flushed_within_and_not_after() -> None:
    with flushed_denormals():
        assert not denormals_count()
        with flushed_denormals():
            assert not denormals_count()
        assert not denormals_count()
    assert denormals_count()
    with pytest.raises(ValueError, match="stop"), flushed_denormals():
        raise ValueError("stop")
    assert denormals_count()


def test_training_evaluating_and_asking_a_dialog_model_flush_them(tmp_path: Path) -> None:
    seen, run = Seen(), tmp_path / "run"
    (tmp_path / "talk.txt").write_text(TALK)
    train(settings(tmp_path), run, seen.report)
    assert seen.counted == {False}
    seen.counted.clear()
    evaluate_dialog(run, limit=2, progress=seen.progress)
    assert seen.counted == {False}
    seen.counted.clear()
    examples = list_examples(load_dialogs(str(tmp_path / "talk.txt")))
    TrainedModel.load(run).respond(examples, DecodeConfig(beam=2), progress=seen.progress)
    assert seen.counted == {False}


def test_evaluations_of_a_language_model_flush_them(tmp_path: Path) -> None:
    seen, run = Seen(), write_run(tmp_path / "run", lines=(120, 10, 10))
    evaluate(run, progress=seen.progress)
    assert seen.counted == {False}
    seen.counted.clear()
    dynamic(run, setting=DynamicSetting(1e-3, 1e-3), progress=seen.progress)
    assert seen.counted == {False}


def test_a_study_flushes_them() -> None:
    seen, model = Seen(), torch.nn.Linear(2, 1)

    def loss() -> torch.Tensor:
        seen.progress(0, 0)
        return model.weight.square().sum()

    descend(model, loss, cosine_adam(3, 0.1))
    assert seen.counted == {False}
