"""Unargmaxable words: those inside the hull of the others, of which no mixture can make one the best."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial import ConvexHull

from lm.analysis.unargmaxable import Logits, logits_of_head, unargmaxable_of_run, unargmaxable_words
from lm.cli import main
from lm.errors import ConfigError, DivergenceError
from tests.support.plain_heads import make_head, naive_probabilities
from tests.support.tiny_lm import tiny_lm, write_run

INFINITE = float("inf")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_words_inside_the_convex_hull_cannot_win(size: int) -> None:
    weight = np.random.default_rng(size).normal(size=(40, size))
    if size == 1:
        corners = {int(weight.argmin()), int(weight.argmax())}
    else:
        corners = set(ConvexHull(weight).vertices.tolist())
    found = unargmaxable_words(Logits(weight, np.zeros(40), INFINITE))
    assert set(found.proved) == set(range(40)) - corners
    assert not found.undecided


def test_a_diverged_model_has_no_number_of_words() -> None:
    trained = tiny_lm()
    torch.nn.init.constant_(trained.model.head.weight, INFINITE)
    with pytest.raises(DivergenceError, match="output matrix is not finite"):
        unargmaxable_of_run(trained)


def test_a_bias_lifts_a_word_out_of_the_hull_and_a_bound_keeps_a_context_from_it() -> None:
    weight, bias = np.array([[-1.0], [0.0], [1.0]]), np.zeros(3)
    assert unargmaxable_words(Logits(weight, bias, INFINITE)).proved == [1]
    assert not any(unargmaxable_words(Logits(weight, np.array([0.0, 0.1, 0.0]), INFINITE)))
    far = np.array([0.0, 0.0, -3.0])  # word 2 wins where x > 3
    assert 2 in unargmaxable_words(Logits(weight, far, 2.0)).proved
    assert 2 not in unargmaxable_words(Logits(weight, far, 4.0)).proved


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_the_scale_of_the_logits_changes_nothing(scale: float) -> None:
    weight = np.random.default_rng(4).normal(size=(30, 2))
    wanted = unargmaxable_words(Logits(weight, weight[:, 0], 1.0))
    assert unargmaxable_words(Logits(scale * weight, scale * weight[:, 0], 1.0)) == wanted
    assert 0 < len(wanted.proved) < 30


@pytest.mark.parametrize("status", [1, 2, 4])
def test_a_program_that_fails_proves_nothing(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.array([[-1.0], [0.0], [1.0]])
    failed = SimpleNamespace(status=status, fun=0.0, x=None)
    monkeypatch.setattr("scipy.optimize.linprog", lambda *call, **options: failed)
    assert unargmaxable_words(Logits(weight, np.zeros(3), INFINITE)) == ([], [1])


def test_a_margin_that_its_context_does_not_have_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = SimpleNamespace(status=0, fun=-1.0, x=np.array([0.5, 1.0]))
    monkeypatch.setattr("scipy.optimize.linprog", lambda *call, **options: claimed)
    assert unargmaxable_words(Logits(np.array([[-1.0], [0.0], [1.0]]), np.zeros(3), 1.0)) == ([], [1])


@pytest.mark.parametrize("bound", [0.5, 2.0])
def test_a_grid_of_contexts_prefers_the_other_words(bound: float) -> None:
    rng = np.random.default_rng(3)
    weight, bias = rng.normal(size=(60, 2)), rng.normal(size=60)
    axis = np.linspace(-bound, bound, 401)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    seen = set((grid @ weight.T + bias).argmax(1).tolist())
    lost, undecided = unargmaxable_words(Logits(weight, bias, bound))
    assert not undecided
    assert not seen & set(lost)
    assert len(seen) + len(lost) >= 58, "the grid misses hardly any word"


@pytest.mark.parametrize("kind", ["mos", "moss", "moc"])
def test_no_mixture_prefers_a_word_that_no_component_prefers(kind: str) -> None:
    """The claim of the module, on many mixtures; and with one component on the contexts of the head."""
    head = make_head(kind, size=2, context_scale=3.0)
    bounded, free = logits_of_head(head, 1.0)
    assert (bounded.bound, bounded.weight.shape) == (3, (13, 2))
    lost = set(unargmaxable_words(bounded).proved)
    assert lost
    assert set(unargmaxable_words(free).proved) <= lost
    assert unargmaxable_words(free, among=sorted(lost)) == unargmaxable_words(free)
    generator = torch.Generator().manual_seed(1)
    hidden = 3 * torch.randn(20_000, 5, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        best = naive_probabilities(head, hidden).argmax(1)
    assert not lost & set(best.tolist())


def test_a_projection_belongs_to_the_matrix_of_a_softmax() -> None:
    head = make_head("softmax", size=3)
    bounded, free = logits_of_head(head, 1.0)
    states = np.random.default_rng(1).uniform(-1, 1, (7, 5))
    with torch.no_grad():
        expected = naive_probabilities(head, torch.from_numpy(states)).log().numpy()
    logits = states @ bounded.weight.T + bounded.bias
    differences = logits - expected
    np.testing.assert_allclose(differences, np.broadcast_to(differences[:, :1], differences.shape))
    assert free.weight.shape == (13, 3)


def test_logits_that_are_no_product_are_refused() -> None:
    for head in (
        make_head("mixtape"),
        make_head("mfs"),
        make_head("cpr"),
        make_head("softmax", temperature="sigmoid"),
    ):
        with pytest.raises(ConfigError, match="not one matrix"):
            logits_of_head(head, 1.0)
    with pytest.raises(ConfigError, match="words tie"):
        logits_of_head(make_head("relu"), 1.0)


def test_contexts_without_tanh_have_no_bound() -> None:
    bounds = [
        [logits.bound for logits in logits_of_head(make_head("mos", context_activation=activation), 1.0)]
        for activation in ("tanh", "none")
    ]
    assert bounds == [[1.0, INFINITE], [INFINITE, INFINITE]]


@pytest.mark.parametrize(
    ("model", "bound"),
    [({}, 1.0), ({"cell": {"kind": "mogrifier_gru"}}, INFINITE), ({"trunk": "transformer"}, INFINITE)],
    ids=str,
)
def test_bounded_contexts_are_those_within_the_bound_of_the_trunk(
    model: dict[str, Any], bound: float
) -> None:
    assert unargmaxable_of_run(tiny_lm(**model)).bound == bound


def test_the_command_counts_words_of_runs(
    ending: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    code, out, err = ending(main, "analyze", "unargmaxable", "a", "--json", "u.json")
    assert (code, err) == (0, "")
    found = json.loads(Path("u.json").read_text())["runs"]["a"]
    assert 0 <= found["unargmaxable_free"] <= found["unargmaxable"] < found["vocabulary"]
    assert found["bound"] == 1
    assert (found["undecided"], found["undecided_free"]) == (0, 0)
    assert "free contexts" in out
    assert "undecided" not in out
    write_run(tmp_path / "hot", temperature="sigmoid")
    code, _, err = ending(main, "analyze", "unargmaxable", "a", "hot")
    assert (code, err.startswith("hot: head.kind = 'softmax', head.temperature = 'sigmoid'")) == (2, True)


def test_the_command_counts_undecided_words_apart(
    ending: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "a", tied=False, embedding_size=1)
    monkeypatch.chdir(tmp_path)

    def numbers() -> tuple[str, dict[str, int]]:
        code, out, err = ending(main, "analyze", "unargmaxable", str(run), "--json", "u.json")
        assert (code, err) == (0, "")
        return out, json.loads(Path("u.json").read_text())["runs"][str(run)]

    _, decided = numbers()
    assert decided["unargmaxable_free"] > 0
    failed = SimpleNamespace(status=4, fun=0.0, x=None)
    monkeypatch.setattr("scipy.optimize.linprog", lambda *call, **options: failed)
    out, found = numbers()
    assert (found["unargmaxable"], found["unargmaxable_free"], found["examples"]) == (0, 0, [])
    assert found["undecided"] >= decided["unargmaxable"]
    assert found["undecided_free"] >= decided["unargmaxable_free"]
    assert f"left {found['undecided']} words" in out
