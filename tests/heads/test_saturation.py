"""Saturation of the tanh layer of heads, and the warning of a training about it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lm.heads.config import HeadConfig
from lm.heads.head import Head
from lm.heads.saturation import watched_contexts
from lm.heads.states import Layers
from tests.support.tiny_task import H, Notes, TinyTask, V, lines, run_folder, train

TOKENS = 7
HEADS_WITH_TANH: list[dict[str, Any]] = [
    {"kind": "moc", "components": 3},
    {"kind": "mos", "components": 3, "context_scale": 4.0, "embedding_size": 4},
    {"kind": "mixtape", "components": 4},
    {"kind": "doc", "components": 3, "lower_components": (2,)},
]


def states(lower: bool) -> Layers:
    return Layers(torch.randn(TOKENS, H), (torch.randn(TOKENS, H),) if lower else ())


@pytest.mark.parametrize("options", HEADS_WITH_TANH, ids=str)
def test_the_derivative_is_that_of_autograd(options: dict[str, Any]) -> None:
    head = Head(HeadConfig(**options), H, V, lower_sizes=(H,)).double().eval()
    hidden = states(lower=True)
    with watched_contexts(torch.nn.ModuleDict({"head": head})) as tanh:
        for at in (slice(0, 3), slice(3, TOKENS)):
            head.mixer.contexts(hidden.rows(at).double())
    inputs = [head.latent(hidden.last.double())] if head.latent is not None else []
    inputs += [layer(below.double()) for layer, below in zip(head.lower, hidden.lower, strict=False)]
    flat = torch.cat([part.flatten() for part in inputs]).detach().requires_grad_()
    (derivatives,) = torch.autograd.grad(torch.tanh(flat).sum(), flat)
    assert tanh.mean == pytest.approx(float(derivatives.mean()), rel=1e-6)
    assert not tanh.saturated


@pytest.mark.parametrize("options", [{}, {"kind": "mos", "components": 2, "context_activation": "none"}])
def test_heads_without_tanh_are_never_saturated(options: dict[str, Any]) -> None:
    head = Head(HeadConfig(**options), H, V)
    with watched_contexts(head) as tanh:
        head.log_probs(1e6 * torch.randn(TOKENS, H))
    assert tanh.mean == 1
    assert not tanh.saturated


def test_nothing_is_measured_after_the_block() -> None:
    head = Head(HeadConfig(kind="mos", components=2), H, V)
    with watched_contexts(head) as tanh:
        pass
    head.log_probs(1e6 * torch.randn(TOKENS, H))
    assert tanh.mean == 1


class TaskWithHead(TinyTask):
    """A tiny task that also validates a mixture, whose contexts are near ``bias``."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.model.head = Head(HeadConfig(kind="mos", components=2), H, V)
        assert self.model.head.latent is not None
        torch.nn.init.constant_(self.model.head.latent.bias, bias)

    def validation(self) -> Iterator[tuple[float, int]]:
        self.model.get_submodule("head").nll(torch.zeros(TOKENS, H), torch.zeros(TOKENS, dtype=torch.int64))
        yield from super().validation()


@pytest.mark.parametrize(("bias", "warned"), [(0.0, False), (1.5, False), (3.0, True)])
def test_every_validation_of_saturated_contexts_is_told_and_logged(bias: float, warned: bool) -> None:
    notes = Notes()
    with run_folder() as folder:
        train(folder, {"max_steps": 4, "validate_every": 2}, task=TaskWithHead(bias), notes=notes)
        events = [line for line in lines(folder) if line.get("event") == "saturated"]
    assert sum("contexts are saturated" in line for line in notes.lines) == 2 * warned
    assert [event["step"] for event in events] == [2, 4] * warned
    assert all(0 < event["derivative"] < 0.05 for event in events)
