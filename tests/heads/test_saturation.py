"""Saturation of the tanh layer of heads, and the warning of a training about it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dialog.corpora.corpus import load_dialogs
from dialog.task import encode_dialogs, score_items
from lm.heads.config import HeadConfig
from lm.heads.head import Head
from lm.heads.saturation import LEAST_DERIVATIVE, ContextWatch, watched_contexts
from lm.heads.states import Layers
from lm.language.task import score_streams
from lm.runs.overview import run_row
from tests.support.tiny_dialog import tiny_dialog, write_corpus
from tests.support.tiny_lm import MIXTURE, ids_of, tiny_lm
from tests.support.tiny_task import H, Notes, TinyTask, V, lines, run_folder, train

TOKENS = 7
HEADS_WITH_TANH: list[dict[str, Any]] = [
    {"kind": "moc", "components": 3},
    {"kind": "mos", "components": 3, "context_scale": 4.0, "embedding_size": 4},
    {"kind": "mixtape", "components": 4},
    {"kind": "doc", "components": 3, "lower_components": (2,)},
]


def mixture(**options: Any) -> Head:
    return Head(HeadConfig(**({"kind": "mos", "components": 2} | options)), H, V, lower_sizes=(H,))


def states() -> Layers:
    return Layers(torch.randn(TOKENS, H), (torch.randn(TOKENS, H),))


@pytest.mark.parametrize("options", HEADS_WITH_TANH, ids=lambda options: options["kind"])
def test_the_derivative_is_that_of_autograd_in_the_lowest_layer(options: dict[str, Any]) -> None:
    head, hidden = mixture(**options).double().eval(), states().double()
    assert head.latent is not None
    with watched_contexts(torch.nn.ModuleDict({"head": head})) as watch:
        for at in (slice(0, 3), slice(3, TOKENS)):
            head.mixer.contexts(hidden.rows(at))
    inputs = [head.latent(hidden.last)]
    inputs += [layer(below) for layer, below in zip(head.lower, hidden.lower, strict=False)]
    means = []
    for one in inputs:
        leaf = one.detach().requires_grad_()
        means.append(float(torch.autograd.grad(torch.tanh(leaf).mean(), leaf)[0].sum()))
    assert watch.derivative == pytest.approx(min(means), rel=1e-12)
    assert not watch.saturated


def test_one_saturated_layer_of_several_counts() -> None:
    head = mixture(kind="doc", components=3, lower_components=(2,))
    assert head.latent is not None
    torch.nn.init.constant_(head.latent.bias, 20.0)
    with watched_contexts(head) as watch:
        head.log_probs(states())
    assert watch.saturated


def test_inputs_in_bfloat16_are_measured_in_float32() -> None:
    head = mixture()
    assert head.latent is not None
    with torch.no_grad():
        head.latent.weight.zero_()
        head.latent.bias.fill_(3.5)  # whose tanh in bfloat16 is 1
    with torch.autocast("cpu", torch.bfloat16), watched_contexts(head) as watch:
        head.log_probs(torch.zeros(TOKENS, H))
    assert watch.derivative == pytest.approx(1 - torch.tensor(3.5).double().tanh().item() ** 2, rel=1e-4)


@pytest.mark.parametrize("options", [{"kind": "softmax", "components": 1}, {"context_activation": "none"}])
def test_heads_without_tanh_are_never_saturated(options: dict[str, Any]) -> None:
    head = mixture(**options)
    with watched_contexts(head) as watch:
        head.log_probs(1e6 * torch.randn(TOKENS, H))
    assert watch.derivative == 1
    assert not watch.saturated


def test_nothing_is_measured_after_the_block_or_an_error_in_it() -> None:
    head, seen = mixture(), []
    for error in (None, RuntimeError()):
        try:
            with watched_contexts(head) as watch:
                seen.append(watch)
                if error:
                    raise error
        except RuntimeError:
            pass
    head.log_probs(1e6 * torch.randn(TOKENS, H))
    assert [watch.derivative for watch in seen] == [1, 1]


def watched(head: Head) -> ContextWatch:
    with watched_contexts(head) as watch:
        head.log_probs(1e6 * torch.ones(TOKENS, H))
    return watch


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"context_scale": 4.0},
        {"start": "frequencies"},
        {"output_bias": False},
        {"kind": "moc", "start": "frequencies", "context_scale": 7.0},
    ],
)
def test_every_remedy_is_a_config_that_differs(options: dict[str, Any], trained: bool) -> None:
    def read(value: str) -> Any:
        return float(value) if value.isdigit() else value

    head = mixture(**options)
    remedies = re.findall(r"--set head\.(\w+)=(\w+)", watched(head).note(trained=trained))
    assert remedies
    for key, value in remedies:
        assert HeadConfig(**(head.config.model_dump() | {key: read(value)})) != head.config
        assert not (trained and key == "start")


def test_the_scoring_of_a_language_model_is_watched() -> None:
    trained = tiny_lm(**MIXTURE)
    with watched_contexts(trained.model) as watch:
        assert [*score_streams(trained.model, [ids_of(trained, 40)], 1, 0)]
    assert 0 < watch.derivative < 1


def test_the_scoring_of_a_dialog_model_is_watched(tmp_path: Path) -> None:
    trained = tiny_dialog()
    data = encode_dialogs(load_dialogs(str(write_corpus(tmp_path))), trained.codec, trained.config)
    with watched_contexts(trained.first) as watch:
        assert [*score_items(trained.first, data, trained.device)]
    assert 0 < watch.derivative < 1


class TaskWithHead(TinyTask):
    """A tiny task that also validates a mixture, whose contexts are at ``bias``."""

    def __init__(self, *biases: float) -> None:
        super().__init__()
        self.biases = [*biases]
        self.model.head = mixture()

    def validation(self) -> Iterator[tuple[float, int]]:
        head: Any = self.model.get_submodule("head")
        with torch.no_grad():
            head.latent.weight.zero_()
            head.latent.bias.fill_(self.biases.pop(0))
        head.nll(torch.zeros(TOKENS, H), torch.zeros(TOKENS, dtype=torch.int64))
        yield from super().validation()


def test_saturation_is_logged_at_every_validation_and_told_when_it_begins_and_ends() -> None:
    edge = (1 - LEAST_DERIVATIVE) ** 0.5
    below, above = (torch.tensor(edge + change).atanh().item() for change in (-1e-3, 1e-3))
    notes, task = Notes(), TaskWithHead(below, above, 4.0, below)
    with run_folder() as folder:
        train(folder, {"max_steps": 4, "validate_every": 1}, task=task, notes=notes)
        events = [line for line in lines(folder) if line.get("event") == "saturated"]
        assert run_row(folder)["state"] == "finished"
        train(folder, {"max_steps": 5, "validate_every": 1}, task=TaskWithHead(above))
        assert run_row(folder)["state"] == "finished, contexts saturated"
    told = [line for line in notes.lines if "saturated" in line]
    assert [line.split(":")[0] for line in told] == ["warning", "the head's contexts are no longer saturated"]
    assert [event["step"] for event in events] == [2, 3]
    assert all(0 < event["derivative"] < LEAST_DERIVATIVE for event in events)


def test_a_resumed_training_knows_that_its_contexts_were_saturated() -> None:
    notes = Notes()
    with run_folder() as folder:
        for steps, bias in ((1, 4.0), (2, 4.0), (3, 0.0)):
            train(folder, {"max_steps": steps, "validate_every": 1}, task=TaskWithHead(bias), notes=notes)
    told = [line.split(":")[0] for line in notes.lines if "saturated" in line]
    assert told == ["warning", "the head's contexts are no longer saturated"]
