"""The protocol of Melis et al. (2020): sizes from a budget, masks, objective."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lm.cells.config import CellConfig
from lm.config.load import load_config
from lm.console.shared_tables import description_tables
from lm.engine.events import no_report
from lm.engine.optim import build_optimizer
from lm.engine.update import Updater
from lm.errors import ConfigError
from lm.heads.config import HeadConfig
from lm.heads.states import Layers
from lm.language.config import LmConfig, ModelConfig
from lm.language.describe import describe
from lm.language.model import LanguageModel
from lm.language.refinements import with_dropout
from lm.language.sizes import count_parameters, sized
from lm.language.train import train
from lm.regularize import dropout_mask
from lm.trunks.recurrent import RecurrentState
from tests.support.outcomes import outcome
from tests.support.tiny_training import resolved, task, write_corpus

V, T, B = 17, 6, 3
CALM = dict.fromkeys(
    ("embedding_dropout", "input_dropout", "hidden_dropout", "output_dropout", "weight_dropout"), 0.0
)
MOGRIFIER = CellConfig(kind="mogrifier", rounds=3, rank=2, cap_input_gate=True)
CELLS = [CellConfig(), CellConfig(cap_input_gate=True), MOGRIFIER, CellConfig(kind="mlstm")]


def config(
    cell: CellConfig | None = None,
    head: dict[str, Any] | None = None,
    sizes: tuple[int, ...] = (5, 5),
    **model: Any,
) -> LmConfig:
    """A tiny model without dropout."""
    return LmConfig(
        model=ModelConfig(embedding_size=5, hidden_sizes=sizes, **CALM | model),
        cell=cell or CellConfig(),
        head=HeadConfig(**{"tied": True, **(head or {})}),
    )


def model_of(config: LmConfig, words: int = V) -> LanguageModel:
    torch.manual_seed(3)
    return LanguageModel(sized(config, words), words).double()


@pytest.mark.parametrize(
    ("preset", "parameters", "hidden", "embedding"),
    [
        ("ptb_mogrifier", 23_987_393, 912, 912),
        ("ptb_lstm_lamb", 23_998_976, 951, 951),
        ("wt2_mogrifier_mos2", 34_991_825, 1366, 272),
        ("wt2_lstm_mos2", 34_997_757, 1211, 428),
    ],
)
def test_sizes_found_for_the_published_budgets(
    preset: str, parameters: int, hidden: int, embedding: int
) -> None:
    description = describe(load_config(preset, LmConfig, family="lm").config)
    assert description["parameters"] == parameters
    assert description["sizes"] == {
        "embedding": embedding, "hidden": [hidden, hidden], "contexts": embedding,
    }  # fmt: skip
    told = description_tables(description)
    assert f"sizes: embedding {embedding}; hidden {hidden}, {hidden}; contexts {embedding}" in told


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2_000, 200_000),
    st.sampled_from([None, 0.3, 1.0, 1.7]),
    st.sampled_from([(1, 1), (1,), (2, 1)]),
    st.booleans(),
)
def test_a_budget_is_used_up_and_never_exceeded(
    budget: int, ratio: float | None, shares: tuple[int, ...], tied: bool
) -> None:
    free = config(head={"tied": tied and ratio is not None}, sizes=shares, input_embedding_ratio=ratio)
    found = sized(free.model_copy(update={"model": free.model.model_copy(update={"budget": budget})}), V)
    sizes = found.model.hidden_sizes
    factor = sizes[-1] // shares[-1]
    assert sizes == tuple(factor * share for share in shares)
    larger = free.model.model_copy(update={"hidden_sizes": tuple((factor + 1) * share for share in shares)})
    above = sized(free.model_copy(update={"model": larger}), V)
    assert count_parameters(found, V) <= budget < count_parameters(above, V)
    if ratio is not None:
        expected = max(1, round(min(1.0, ratio) * sizes[-1]))
        assert found.model.embedding_size == found.head.embedding_size == expected


def test_a_budget_gives_the_model_that_its_sizes_give() -> None:
    by_budget = model_of(config(budget=2_000, sizes=(1, 1), input_embedding_ratio=0.5))
    size = by_budget.config.hidden_sizes[0]
    assert size > 5
    head = {"embedding_size": by_budget.config.embedding_size}
    plain = config(sizes=(size, size), head=head)
    plain = plain.model_copy(update={"model": plain.model.model_copy(update=head)})
    for name, tensor in model_of(plain).state_dict().items():
        assert torch.equal(tensor, by_budget.state_dict()[name]), name


def test_a_model_takes_no_config_with_sizes_to_be_found() -> None:
    for open_sizes in ({"budget": 2_000}, {"input_embedding_ratio": 0.5}):
        with pytest.raises(ValueError, match="has unresolved sizes"):
            LanguageModel(config(**open_sizes), V)


def test_a_budget_too_small_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"model\.budget = 50: .* raise the budget, or lower") as error:
        sized(config(budget=50, sizes=(3, 3), input_embedding_ratio=1.0), V)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_output_is_the_sum_of_all_layers(cell: CellConfig) -> None:
    model = model_of(config(cell, sizes=(5, 5, 5), layer_sum=True))
    tokens, state = torch.randint(V, (T, B)), model.initial_state(B)
    inputs, total = model.embedding(tokens), torch.zeros((), dtype=torch.float64)
    for layer, before in zip(model.layers.recurrent_layers(), state.layers, strict=True):
        inputs, _ = layer(inputs, before)
        total = total + inputs
    outputs = model(tokens, state)
    torch.testing.assert_close(outputs.hidden.last, total)
    torch.testing.assert_close(outputs.raw, total)


@pytest.mark.parametrize(("sizes", "reason"), [("7, 5", "one size .* not 7, 5"), ("7", "nothing")])
def test_layers_of_several_sizes_and_one_layer_have_no_sum(tmp_path: Path, sizes: str, reason: str) -> None:
    path = tmp_path / "sum.toml"
    path.write_text(f"[model]\nhidden_sizes = [{sizes}]\nlayer_sum = true\n")
    with pytest.raises(ConfigError, match=rf"sum\.toml:3: \[model\] layer_sum .* {reason}"):
        load_config(str(path), LmConfig, family="lm")


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_state_dropout_has_one_mask_for_all_steps_of_a_layer(cell: CellConfig) -> None:
    """Equal to stepping through the window with h masked before every step, the mask being the layer's."""
    model = model_of(config(cell, state_dropout=0.5)).train()
    tokens = torch.randint(V, (T, B))
    state = RecurrentState(tuple((torch.randn(B, 5).double(),) * 2 for _ in range(2)))
    torch.manual_seed(8)
    outputs = model(tokens, state)
    torch.manual_seed(8)
    masks = [dropout_mask(h, h.shape, 0.5) for h, _ in state.layers]
    assert not torch.equal(*masks)
    inputs = model.embedding(tokens)
    for layer, mask, (h, c) in zip(model.layers, masks, state.layers, strict=True):
        steps = []
        for x in inputs:
            step, (h, c) = layer(x[None], (h * mask, c))
            steps.append(step)
        inputs = torch.cat(steps)
    torch.testing.assert_close(outputs.raw, inputs)
    torch.testing.assert_close(outputs.state.layers[1][0], inputs[-1])
    calm = model.eval()(tokens, state).raw
    assert not torch.allclose(calm, outputs.raw, atol=1e-3)


@pytest.mark.parametrize("place", ["input", "hidden", "output"])
def test_masks_for_each_step_differ_and_shared_ones_do_not(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, ...]] = []

    def spy(like: Tensor, shape: tuple[int, ...], rate: float) -> Tensor:
        shapes.append(tuple(shape))
        return dropout_mask(like, shape, rate)

    monkeypatch.setattr("lm.regularize.dropout_mask", spy)
    for masks, steps in (("shared", 1), ("per_step", T)):
        model = model_of(config(**{f"{place}_dropout": 0.5, "dropout_masks": masks})).train()
        hidden = model(torch.randint(V, (T, B)), model.initial_state(B)).hidden
        assert shapes.pop() == (steps, B, 5)
        assert not shapes
        if place == "output":
            dropped = hidden.last == 0
            assert bool((dropped == dropped[:1]).all()) == (masks == "shared")


def test_the_heads_own_dropout_follows_the_kind_of_mask() -> None:
    hidden = Layers(torch.ones(T, B, 5).double())
    for masks in ("shared", "per_step"):
        head = {"embedding_size": 5, "kind": "mos", "components": 2, "latent_dropout": 0.5}
        model = model_of(config(head=head, dropout_masks=masks)).train()
        contexts, _ = model.head.mixer.contexts(model.for_head(hidden))
        dropped = contexts.reshape(T, B, -1) == 0
        assert bool((dropped == dropped[:1]).all()) == (masks == "shared")
        assert not torch.equal(dropped[:, 0], dropped[:, 1]), "streams share a mask"


def test_scaled_weights_have_the_deviation_of_their_width() -> None:
    head = {"embedding_size": 25, "tied": False}
    free = config(head=head, sizes=(60,), embedding_init="scaled")
    wide = free.model_copy(update={"model": free.model.model_copy(update={"embedding_size": 36})})
    model = model_of(wide, words=4000)
    for weight, size in ((model.embedding.weight.detach(), 36), (model.head.weight.detach(), 25)):
        assert weight.shape[1] == size
        assert float(weight.std()) == pytest.approx(size**-0.5, rel=0.01)
        assert float(weight.abs().max()) < 2.3 * size**-0.5
    assert model.head.projection is not None
    projection = model.head.projection.weight.detach()
    torch.testing.assert_close(projection @ projection.t(), torch.eye(25).double(), atol=1e-5, rtol=0)


def test_mc_passes_scale_the_dropout_of_states_too() -> None:
    model = model_of(config(MOGRIFIER, state_dropout=0.4, dropout_masks="per_step"))
    sampler = with_dropout(model, 0.5)
    assert sampler.config.dropout_masks == "per_step"
    assert max(model.layers.dropout_rates()) == 0.4
    assert [*sampler.layers.dropout_rates()] == [0.5 * rate for rate in model.layers.dropout_rates()]
    assert model.config.state_dropout == 0.4
    with pytest.raises(ConfigError, match="--mc-rate"):
        with_dropout(model, 2.5)


def test_a_rate_that_the_trunk_does_not_read_limits_no_mc_rate() -> None:
    model = model_of(
        config(
            head={"tied": False}, sizes=(8, 8), trunk="transformer", weight_dropout=0.5, hidden_dropout=0.1
        )
    )
    assert with_dropout(model, 3.0).layers.dropout_rates() == (pytest.approx(0.3),)


# training

CONFIG = """
[data]
train = "train.txt"
valid = "valid.txt"
test = "valid.txt"
valid_streams = 3
[window]
length = 5
random = false
rescale_lr = false
order = "read_heads"
jitter = 2
state_reset = 0.2
[model]
budget = 3000
hidden_sizes = [1, 1]
input_embedding_ratio = 0.7
layer_sum = true
embedding_init = "scaled"
dropout_masks = "per_step"
embedding_dropout = 0.0
input_dropout = 0.2
hidden_dropout = 0.1
state_dropout = 0.2
output_dropout = 0.2
weight_dropout = 0.0
activation_penalty = 0.0
slowness_penalty = 0.0
weight_penalty = 1e-3
[cell]
kind = "mogrifier"
rounds = 2
rank = 2
cap_input_gate = true
[head]
tied = true
latent_dropout = 0.2
[optim]
lr = 0.02
betas = [0.0, 0.999]
clip_norm = 0.1
average = "uniform"
average_patience = 2
average_start = 18
[train]
batch_size = 4
max_steps = 24
validate_every = 3
checkpoint_every = 3
log_every = 3
"""


@pytest.fixture
def corpus(in_tmp: Path) -> Path:
    return write_corpus(in_tmp, CONFIG, train=40, valid=9, longest=7)


def test_a_sum_over_time_and_a_mean_of_tokens_are_the_same_training(corpus: Path) -> None:
    """lamb's objective, with its clip, penalty and ε, against ours with all three divided by the window."""
    calm = [f"model.{place}_dropout=0.0" for place in ("input", "hidden", "state", "output")]
    calm += ["head.latent_dropout=0.0", "window.state_reset=0.0"]
    clip, penalty, eps, length, lr = 1.5, 0.05, 1e-3, 5, 0.02
    ours = task(
        *calm, f"optim.clip_norm={clip / length}", f"model.weight_penalty={penalty / length}",
        f"optim.eps={eps / length}", dtype=torch.float64,
    )  # fmt: skip
    theirs = task(*calm, dtype=torch.float64)
    optimizer = build_optimizer(ours.config.optim, ours.model, ours.config.train.precision)
    updater = Updater(ours.model, ours.loss, optimizer, ours.config.optim, ours.config.train)
    parameters = list(theirs.model.parameters())
    plain = torch.optim.Adam(parameters, lr, betas=(0.0, 0.999), eps=eps)
    state, clipped = theirs.model.initial_state(4), 0
    for _, batch in zip(range(8), ours.epoch(0, 0), strict=False):
        updater.apply(updater.gradients([batch]), lr)
        updater.clear()
        outputs = theirs.model(batch.tokens, state.detached())
        state = outputs.state
        nll = -theirs.model.head.log_probs(outputs.hidden).gather(-1, batch.targets[..., None])
        loss = nll.sum(0).mean() + penalty * 0.5 * sum((p**2).sum() for p in parameters)
        plain.zero_grad()
        loss.backward()
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
        clipped += norm > clip
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad *= min(1.0, clip / norm)
        plain.step()
    assert 0 < clipped < 8, "both kinds of update are part of this test"
    for mine, other in zip(ours.model.parameters(), parameters, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-9)


def test_a_share_of_the_streams_forgets(corpus: Path) -> None:
    tiny = task("window.state_reset=0.3")
    ones = RecurrentState(((torch.ones(5000, 2), torch.ones(5000, 3)),))
    kept = tiny._forgetful(ones)
    assert isinstance(kept, RecurrentState)
    ((h, c),) = kept.layers
    gone = h[:, 0] == 0
    assert float(gone.float().mean()) == pytest.approx(0.3, abs=0.03)
    assert torch.equal(h, (~gone)[:, None].expand(-1, 2).float())
    assert torch.equal(c, (~gone)[:, None].expand(-1, 3).float())
    assert task("window.state_reset=0.0")._forgetful(ones) is ones


@pytest.mark.parametrize("lr", [0.02, 0.3])  # averages by the clock; because validation stalls
def test_a_run_that_was_stopped_ends_with_the_same_bits(corpus: Path, lr: float) -> None:
    train(resolved(f"optim.lr={lr}"), Path("once"), no_report)
    for steps in (3, 12, 21, 24):
        train(resolved(f"optim.lr={lr}", f"train.max_steps={steps}"), Path("twice"), no_report)
    assert b'"averaging"' in outcome(Path("once"))[1]
    assert outcome(Path("once")) == outcome(Path("twice"))
