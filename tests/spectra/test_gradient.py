"""Gradients that heads pass back: equal to autograd's, and of the rank that theory allows."""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lm.analysis.gradient import gradients_of, gradients_of_run
from lm.cli import main
from lm.errors import DataError, DivergenceError
from lm.heads.config import HeadConfig
from lm.heads.head import Head
from lm.heads.states import Layers
from lm.spectra.derivatives import HeadGradients
from lm.spectra.gradient import GradientRanks
from tests.support.plain_heads import KINDS, LOWER, H, N, V, example, make_head, naive_probabilities
from tests.support.tiny_lm import ids_of, tiny_lm, write_run


def split(head: Head, hidden: Tensor) -> Layers:
    """States (N, H) as the layers that a head reads."""
    if not head.lower_sizes:
        return Layers(hidden)
    return Layers(hidden[:, :-LOWER], (hidden[:, -LOWER:],))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(kind, {}) for kind in KINDS]
    + [("mos", {"temperature": "sigmoid"}), ("softmax", {"temperature": "constant", "temperature_value": 3})],
    ids=str,
)
def test_gradients_and_shares_are_those_of_the_written_out_formula(
    kind: str, settings: dict[str, object]
) -> None:
    head = make_head(kind, **settings)
    if kind == "relu":  # no logit below 0, where its gradient is 0
        torch.nn.init.constant_(head.bias, 9.0)
    hidden, targets, _ = example()
    hidden = hidden.detach()
    gradients = HeadGradients(head, [(split(head, hidden), targets)])

    def log_probs(state: Tensor) -> Tensor:
        if settings:
            return head.log_probs(split(head, state[None]))[0]
        return naive_probabilities(head, state[None])[0].log()

    at_logits, at_states, update = (
        torch.cat(list(blocks))
        for blocks in (gradients.at_logits(), gradients.at_states(), gradients.of_update())
    )
    for token, (state, target) in enumerate(zip(hidden[:4], targets[:4], strict=True)):
        wanted = log_probs(state).detach().exp() - torch.nn.functional.one_hot(target, V)
        torch.testing.assert_close(at_logits[token], wanted)
        jacobian = torch.autograd.functional.jacobian(log_probs, state).detach()
        centred = jacobian - jacobian.mean(0)
        back = -jacobian[target]
        torch.testing.assert_close(at_states[token], back)
        torch.testing.assert_close(update[token], centred @ back)
        torch.testing.assert_close(gradients.jacobian(token), centred.T)
        reached = centred @ torch.linalg.lstsq(centred, wanted[:, None], driver="gelsd").solution[:, 0]
        share, rank = gradients.share(token)
        assert share == pytest.approx(float(reached.norm() / wanted.norm()), rel=1e-6)
        assert rank == torch.linalg.matrix_rank(centred)


def test_the_words_that_are_answered_are_constants_of_the_derivative() -> None:
    """The head's reading of one token, with its own source, differentiated by autograd."""
    config = HeadConfig(kind="cpr", embedding_size=4, source="pointer", candidates=(2,))
    head = Head(config, H, V, word_size=6).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    assert head.source_reader is not None
    ids, said = torch.randint(0, V, (3, 4)), torch.randn(12, 6, dtype=torch.float64)
    words = head.source_reader(ids, torch.ones(3, 4, dtype=torch.bool), said, torch.arange(12).view(3, 4))
    rows = torch.tensor([0, 2, 1, 1, 2])
    hidden, targets = torch.randn(5, H, dtype=torch.float64), torch.arange(5)
    parts = [
        (Layers(hidden[part], source=words.select(rows[part])), targets[part])
        for part in (slice(2), slice(2, 5))
    ]
    gradients = HeadGradients.of(head, parts)
    at_states = torch.cat([*gradients.at_states()])

    def log_probs(state: Tensor, row: Tensor) -> Tensor:
        return head.log_probs(Layers(state[None], source=words.select(row[None])))[0]

    for token, row in enumerate(rows):
        read = partial(log_probs, row=row)
        jacobian = torch.autograd.functional.jacobian(read, hidden[token]).detach()
        torch.testing.assert_close(at_states[token], -jacobian[targets[token]])
        torch.testing.assert_close(gradients.jacobian(token), (jacobian - jacobian.mean(0)).T)


def test_a_softmax_loses_what_its_output_matrix_cannot_reach() -> None:
    """The share by an orthonormal basis of the output matrix, and the update, as Godey & Artzi write them."""
    head = make_head("softmax", size=H)
    hidden, targets, _ = example()
    gradients = HeadGradients(head, [(Layers(hidden.detach()), targets)])
    weight = head.weight.detach() - head.weight.detach().mean(0)
    basis = torch.linalg.qr(weight).Q
    at_logits = torch.cat(list(gradients.at_logits()))
    for token, one in enumerate(at_logits):
        assert gradients.share(token)[0] == pytest.approx(float((basis.T @ one).norm() / one.norm()))
    torch.testing.assert_close(torch.cat(list(gradients.of_update())), at_logits @ weight @ weight.T)


@pytest.mark.parametrize("kind", KINDS)
def test_rank_of_the_update_is_what_theory_says(kind: str) -> None:
    """At most E for linear heads. More for mixtures and links that no product of rank E can follow."""
    size = 2
    trained = tiny_lm(
        kind=kind,
        embedding_size=size,
        tied=False,
        components={"softmax": 1, "plif": 1, "sigsoftmax": 1, "sigmoid": 1, "relu": 1}.get(kind, 4),
        **({"lower_components": (2,)} if kind == "doc" else {}),
        **({"latent_dropout": 0.0}),
    )
    found = gradients_of_run(trained, ids_of(trained, 60), sample=60)
    words = found.vocabulary
    assert found.logits.rank == min(60, words - 1), "g sums to zero"
    assert found.states.rank <= found.state_size
    assert 0 < found.alignment <= found.share <= 1
    for ranks in (found.logits, found.states, found.update):
        assert 1 <= ranks.effective_rank <= ranks.rank + 1e-9
    if kind in ("softmax", "moc"):
        assert found.update.rank == size
        assert found.jacobian_rank == size
    elif kind != "relu":  # most of whose logits have no gradient
        assert found.update.rank > 2 * size
    if kind == "softmax":
        assert found.states.rank == size


def test_equal_components_are_one_component() -> None:
    """The definition does not depend on the way in which a distribution is written as a mixture."""
    one, three = make_head("mos", components=1), make_head("mos", components=3)
    with torch.no_grad():
        three.weight.copy_(one.weight)
        three.bias.copy_(one.bias)
        three.latent.weight.copy_(one.latent.weight.repeat(3, 1))
        three.latent.bias.copy_(one.latent.bias.repeat(3))
    hidden, targets, _ = example()
    both = [HeadGradients(head, [(Layers(hidden.detach()), targets)]) for head in (one, three)]
    for blocks in zip(*(gradients.of_update() for gradients in both), strict=True):
        torch.testing.assert_close(*blocks)
    shares = [[gradients.share(token) for token in range(N)] for gradients in both]
    assert shares[0] == [(pytest.approx(share, rel=1e-6), rank) for share, rank in shares[1]]


def test_a_larger_factor_passes_more_gradient_to_the_states() -> None:
    """In the limit of small states, where tanh is linear, the gain is proportional to the factor."""
    gains = []
    for scale in (1.0, 4.0):
        torch.manual_seed(7)
        head = make_head("mos", components=1, context_scale=scale)
        with torch.no_grad():
            head.latent.bias.zero_()
            head.bias.zero_()
        targets = torch.arange(N)
        gradients = HeadGradients(head, [(Layers(torch.zeros(N, H, dtype=torch.float64)), targets)])
        gains.append(float(torch.cat(list(gradients.at_states())).norm()))
    assert gains[1] == pytest.approx(4 * gains[0])


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that an operation returned."""

    size = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.size = max(self.size, tensor.numel())
        return result


def test_memory_does_not_grow_with_the_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of T·V numbers, no more than a block is ever there at once."""
    monkeypatch.setattr("lm.spectra.derivatives.ENTRIES", 20 * 3 * V)
    head = make_head("mos", components=3)
    hidden = torch.randn(500, H, dtype=torch.float64)
    gradients = HeadGradients(head, [(Layers(hidden), torch.randint(0, V, (500,)))])
    assert gradients.rows == 20
    with Largest() as largest:
        assert sum(len(block) for block in gradients.of_update()) == 500
        gradients.share(3)
    assert largest.size <= max(20 * 3 * V, 500 * H)


def test_the_numbers_of_a_run_are_means_over_its_gradients() -> None:
    trained = tiny_lm()
    ids = ids_of(trained, 20)
    found, gradients = gradients_of_run(trained, ids, sample=3), gradients_of(trained, ids)
    at_logits, at_states, update = (
        torch.cat([*blocks])
        for blocks in (gradients.at_logits(), gradients.at_states(), gradients.of_update())
    )
    assert found.gradient_norm == pytest.approx(float(at_logits.square().sum(1).mean().sqrt()))
    assert found.gain == pytest.approx(float(at_states.norm() / at_logits.norm()))
    assert found.alignment == pytest.approx(float(F.cosine_similarity(update, at_logits).mean()))
    shares, ranks = zip(*(gradients.share(token) for token in (0, 10, 19)), strict=True)
    assert found.share == pytest.approx(np.mean(shares))
    assert found.share_error == pytest.approx(np.std(shares, ddof=1) / 3**0.5)
    assert found.random_share == pytest.approx((np.mean(ranks) / (found.vocabulary - 1)) ** 0.5)


def test_tokens_without_a_gradient_have_no_share() -> None:
    trained = tiny_lm(output_bias=True)
    ids = ids_of(trained, 8)
    ids[3:] = 1
    with torch.no_grad():
        trained.model.head.bias.fill_(-2000.0)
        trained.model.head.bias[1] = 2000.0
    found = gradients_of_run(trained, ids, sample=8)
    assert found.sample == int((ids != 1).sum())
    assert math.isfinite(found.share)
    with pytest.raises(DivergenceError, match="certain of every token"):
        gradients_of_run(trained, ids[3:], sample=5)


def test_an_empty_text_is_refused() -> None:
    trained = tiny_lm()
    with pytest.raises(DataError, match="0 tokens are too few"):
        gradients_of_run(trained, ids_of(trained, 0), sample=3)


def test_progress_counts_norms_shares_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lm.spectra.derivatives.ENTRIES", 1)  # a block is a token
    told, shown = list[tuple[int, int]](), list[int]()
    original = GradientRanks.of.__func__  # type: ignore[attr-defined]

    def ranks(cls: Any, *arguments: Any) -> GradientRanks:
        found: GradientRanks = original(cls, *arguments)
        shown.append(len(told))
        assert told[-1][0] < told[-1][1], "the bar stays until all is done"
        return found

    monkeypatch.setattr(GradientRanks, "of", classmethod(ranks))
    trained = tiny_lm()
    gradients_of_run(trained, ids_of(trained, 20), sample=3, progress=lambda *at: told.append(at))
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]
    assert shown == [43, 63, 83], "20 tokens for the norms and for each rank, and 3 shares"


def test_the_command_measures_runs_and_their_checkpoints(
    ending: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", kind="mos", components=2, context_scale=4.0)
    monkeypatch.chdir(tmp_path)
    command = ("analyze", "gradient", "a", "b", "--limit", "40", "--sample", "3", "--json", "g.json")
    code, out, err = ending(main, *command)
    assert (code, err) == (0, "")
    runs = json.loads(Path("g.json").read_text())["runs"]
    assert [runs[name]["tokens"] for name in ("a", "b")] == [40, 40]
    assert (runs["b"]["context_scale"], runs["b"]["components"]) == (4, 2)
    assert "alignment" in out
    assert ending(main, *command, "--over-training")[0] == 0
    assert list(json.loads(Path("g.json").read_text())["runs"]) == ["a step-3", "b step-3"]


def test_an_error_names_gradients_and_their_token() -> None:
    rows = torch.zeros(4, 3, dtype=torch.float64)
    rows[2, 1] = math.nan
    with pytest.raises(DivergenceError, match=r"^gradients of token 3 are not finite"):
        GradientRanks.of(iter(rows.split(2)), 4, 3)
