"""The AWD-LSTM model: published parameter counts, every dropout where it belongs, weight drop that trains."""

from typing import Any

import pytest
import torch
from torch import nn

from lm.cells.config import CellConfig, CellKind
from lm.cells.lstm import WeightDropLSTM
from lm.config.load import load_config
from lm.errors import ConfigError
from lm.heads.config import HeadConfig
from lm.language.config import LmConfig, ModelConfig
from lm.language.describe import describe
from lm.language.model import LanguageModel
from lm.regularize import (
    activation_penalty,
    dropout,
    dropout_mask,
    locked_dropout,
    slowness_penalty,
    word_dropout,
)
from lm.trunks.recurrent import RecurrentState

V, T, B = 17, 6, 3


def config(**model: Any) -> LmConfig:
    rates = dict.fromkeys(("embedding", "input", "hidden", "output", "weight"), 0.0)
    settings = {f"{name}_dropout": rate for name, rate in rates.items()} | model
    sizes = {"embedding_size": 5, "hidden_sizes": (7, 5)} | settings
    return LmConfig(model=ModelConfig(**sizes), head=HeadConfig(tied=True))


def test_a_doc_head_reads_the_layers_below() -> None:
    own = config(hidden_sizes=(7, 6), output_dropout=0.5)
    head = HeadConfig(kind="doc", components=4, lower_components=(1, 2), embedding_size=5, tied=True)
    model = LanguageModel(own.model_copy(update={"head": head}), V)
    assert model.head.lower_sizes == (7, 5)
    outputs = model(inputs := tokens(), model.initial_state(B))
    last, (below, words) = outputs.hidden.last, outputs.hidden.lower
    torch.testing.assert_close(words, model.embedding(inputs))
    first, _ = model.layers[0](words, model.layers.initial_state(B).layers[0])
    torch.testing.assert_close(below, first)
    assert ((last == 0) | (last == 2 * outputs.raw)).all()
    targets = tokens()
    loss = model.head.loss(outputs.hidden, targets)
    wanted = -model.head.log_probs(outputs.hidden).gather(-1, targets[..., None]).sum()
    torch.testing.assert_close(loss, wanted)
    deep = own.model_copy(update={"head": head.model_copy(update={"lower_components": (1, 0, 1, 1)})})
    with pytest.raises(ConfigError, match="doc reads 4 layers below the last, but the model provides 2"):
        LanguageModel(deep, V)


def tokens() -> torch.Tensor:
    return torch.randint(V, (T, B))


@pytest.mark.parametrize(
    ("preset", "count"),
    [
        ("ptb_mos", 21_500_620),
        ("wt2_mos", 34_909_528),
        ("ptb_softmax", 24_221_600),
        ("wt2_softmax", 33_556_078),
        ("ptb_moc", 21_500_620),
        ("ptb_softmax_narrow", 16_350_800),
    ],
)
def test_parameter_counts_are_the_published_ones(preset: str, count: int) -> None:
    resolved = load_config(preset, LmConfig, family="lm").config
    assert describe(resolved)["parameters"] == count


def test_without_dropout_the_stack_is_torchs() -> None:
    model = LanguageModel(config(), V)
    words = model.embedding(inputs := tokens())
    for layer in model.layers:
        reference = nn.LSTM(layer.input_size, layer.hidden_size)
        reference.load_state_dict(layer.state_dict())
        words, _ = reference(words)
    outputs = model(inputs, model.initial_state(B))
    torch.testing.assert_close(outputs.hidden.last, words)
    torch.testing.assert_close(outputs.raw, words)
    assert model.head.weight is model.embedding.weight


def test_windows_join_to_the_whole() -> None:
    model = LanguageModel(config(), V).eval()
    inputs, state = torch.randint(V, (11, B)), model.initial_state(B)
    whole = model(inputs, state).hidden.last
    pieces = []
    for part in inputs.split([4, 1, 6]):
        outputs = model(part, state)
        state = model.state_from(outputs.state.detached().tensors(), torch.device("cpu"))
        pieces.append(outputs.hidden.last)
    torch.testing.assert_close(torch.cat(pieces), whole)


@pytest.mark.parametrize("kind", ["lstm", "mogrifier", "mlstm", "gru"])
def test_an_episodic_model_reads_every_sentence_from_a_zero_state(kind: CellKind) -> None:
    eos, sentences = 2, [[1, 3], [], [4, 5, 6, 1, 0], [7]]
    own = config(episodic=True).model_copy(update={"cell": CellConfig(kind=kind)})
    model = LanguageModel(own, V, eos).double()
    zeros = model.layers.initial_state(1).layers
    start = RecurrentState(tuple((h + 1, c + 1) for h, c in zeros))  # which it forgets
    text = torch.tensor([token for words in sentences for token in (eos, *words)])[:, None]
    whole = model(text, start).hidden.last
    alone = [model(torch.tensor([eos, *words])[:, None], start).hidden.last for words in sentences]
    torch.testing.assert_close(whole, torch.cat(alone))
    grads = torch.autograd.grad(
        whole[:1].sum(), list(model.parameters()), allow_unused=True, retain_graph=True
    )
    assert grads[0] is not None
    assert set(grads[0].nonzero()[:, 0].tolist()) == {eos}
    remembering = LanguageModel(own, V, eos=V).double()
    remembering.load_state_dict(model.state_dict())
    assert not torch.equal(remembering(text, start).hidden.last, whole)
    with pytest.raises(ValueError, match="needs the id of <eos>"):
        LanguageModel(own, V)(text, start)


@pytest.mark.parametrize("streams", [1, 2, 7])
def test_few_tokens_take_another_path_to_the_same_numbers(
    streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = WeightDropLSTM(4, 6).double()
    state = (torch.randn(streams, 6).double(), torch.randn(streams, 6).double())
    inputs = torch.randn(2, streams, 4).double()
    found = []
    for few in (0, 100):
        monkeypatch.setattr("lm.cells.lstm.FEW_TOKENS", few)
        layer.zero_grad()
        outputs, (h, c) = layer(inputs, state)
        (outputs.square().sum() + h.sum() + (2 * c).sum()).backward()
        found.append([outputs, h, c, *(parameter.grad for parameter in layer.parameters())])
    for expected, own in zip(*found, strict=True):
        torch.testing.assert_close(own, expected)


def test_weight_drop_reaches_the_raw_weight_and_differs_between_windows() -> None:
    layer = WeightDropLSTM(4, 6, 0.5)
    state = (torch.zeros(B, 6), torch.zeros(B, 6))
    inputs = torch.randn(T, B, 4)
    before = layer.weight_hh_l0.detach().clone()
    first, second = layer(inputs, state)[0], layer(inputs, state)[0]
    assert not torch.equal(first, second), "both windows have the same mask"
    first.sum().backward()
    grad = layer.weight_hh_l0.grad
    assert grad is not None
    share = float((grad == 0).float().mean())
    assert 0.3 < share < 0.7, "gradients of dropped weights are zero, the others are not"
    with torch.no_grad():
        layer.eval()
        assert torch.equal(layer(inputs, state)[0], layer(inputs, state)[0])
        layer.train()
    layer(inputs, state)[0].sum().backward()  # train → eval → train goes on
    torch.optim.SGD(layer.parameters(), 0.1).step()
    assert not torch.equal(layer.weight_hh_l0, before)
    assert {name for name, _ in layer.named_parameters()} == {
        name for name, _ in nn.LSTM(4, 6).named_parameters()
    }


def test_weight_drop_scales_and_drops_nothing_but_the_recurrent_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = WeightDropLSTM(4, 6, 0.25)
    seen: list[list[torch.Tensor]] = []
    real = torch.lstm
    monkeypatch.setattr(torch, "lstm", lambda *given: seen.append(given[2]) or real(*given))
    layer(torch.randn(T, B, 4), (torch.zeros(B, 6), torch.zeros(B, 6)))
    used = dict(zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), seen[0], strict=True))
    for name, weight in used.items():
        if name != "weight_hh_l0":
            assert weight is getattr(layer, name)
    kept = used["weight_hh_l0"] != 0
    torch.testing.assert_close(used["weight_hh_l0"][kept], layer.weight_hh_l0[kept] / 0.75)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.75])
def test_a_mask_drops_its_share_each_entry_on_its_own(rate: float) -> None:
    count = 400_000
    mask = dropout_mask(torch.empty(0), (count // 4, 4), rate)
    assert mask.unique().tolist() == pytest.approx([0, 1 / (1 - rate)], rel=2e-5)
    deviation = (rate / (1 - rate) / count) ** 0.5  # of the mean
    assert float(mask.double().mean()) == pytest.approx(1, abs=5 * deviation)
    columns = (mask == 0).double().t()  # the four entries of one random number, (4, N)
    correlations = torch.corrcoef(columns) - torch.eye(4, dtype=torch.float64)
    assert float(correlations.abs().max()) < 5 / (count / 4) ** 0.5
    later = torch.corrcoef(torch.stack((columns[0, 1:], columns[0, :-1])))[0, 1]
    assert abs(float(later)) < 5 / (count / 4) ** 0.5


def test_masks_of_extreme_rates_and_shapes() -> None:
    like = torch.empty(0, dtype=torch.float64)
    assert dropout_mask(like, (7, 3), 1e-9).unique().tolist() == [1.0]
    assert dropout_mask(like, (5,), 1 - 1e-9).unique().tolist() in ([0.0], [0.0, 2.0**16])
    assert dropout_mask(like, (0, 3), 0.5).shape == (0, 3)
    assert dropout_mask(like, (), 0.5).shape == ()
    assert dropout_mask(torch.empty(0, dtype=torch.bfloat16), (3,), 0.5).dtype == torch.bfloat16
    states = torch.ones(1000)
    assert dropout(states, 0.5, training=False) is states
    torch.manual_seed(1)
    dropped = dropout(states, 0.5, training=True)
    torch.manual_seed(1)
    assert torch.equal(dropped, dropout_mask(states, (1000,), 0.5))


def test_locked_dropout_has_one_mask_for_all_steps() -> None:
    dropped = locked_dropout(torch.ones(50, 4, 100), 0.4, training=True)
    assert torch.equal(dropped, dropped[:1].expand_as(dropped))
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / 0.6], rel=2e-5)
    assert float((dropped[0] == 0).float().mean()) == pytest.approx(0.4, abs=0.1)
    assert not torch.equal(dropped[0, 0], dropped[0, 1]), "streams share a mask"
    assert locked_dropout(states := torch.ones(2, 2, 2), 0.4, training=False) is states


def test_word_dropout_equals_dropping_rows_of_the_matrix() -> None:
    matrix, ids = torch.randn(V, 5), tokens()
    torch.manual_seed(3)
    dropped = word_dropout(matrix[ids], ids, V, 0.5, training=True)
    torch.manual_seed(3)
    rows = dropout_mask(matrix, (V,), 0.5)
    torch.testing.assert_close(dropped, (matrix * rows[:, None])[ids])
    assert 0 < int((rows == 0).sum()) < V


@pytest.mark.parametrize("place", ["embedding", "input", "hidden", "output", "weight"])
def test_each_dropout_acts_in_training_alone(place: str) -> None:
    model = LanguageModel(config(**{f"{place}_dropout": 0.5}), V)
    state, inputs = model.initial_state(B), tokens()
    calm = LanguageModel(config(), V)
    calm.load_state_dict(model.state_dict())
    expected = calm(inputs, state)
    torch.manual_seed(1)
    first, again = model(inputs, state), model(inputs, state)
    assert not torch.equal(first.hidden.last, again.hidden.last)
    assert not torch.equal(first.hidden.last, expected.hidden.last)
    if place == "output":
        torch.testing.assert_close(first.raw, expected.raw)
    model.eval()
    torch.testing.assert_close(model(inputs, state).hidden.last, expected.hidden.last)


def test_penalties_are_their_formulas() -> None:
    states = torch.randn(T, B, 5)
    assert float(activation_penalty(states)) == pytest.approx(float((states**2).mean()))
    changes = torch.stack([states[t + 1] - states[t] for t in range(T - 1)])
    assert float(slowness_penalty(states)) == pytest.approx(float((changes**2).mean()))
    assert float(slowness_penalty(states[:1])) == 0.0


def test_initial_weights_are_the_authors() -> None:
    torch.manual_seed(5)
    model = LanguageModel(config(embedding_size=40, hidden_sizes=(30, 40)), 500)
    assert float(model.embedding.weight.detach().abs().max()) == pytest.approx(0.1, abs=0.001)
    assert model.head.bias is not None
    assert not model.head.bias.any()
    for layer in model.layers:
        limit = layer.hidden_size**-0.5
        assert all(0.9 * limit < float(p.detach().abs().max()) <= limit for p in layer.parameters())


def test_a_tied_head_of_another_size_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"head\.tied.*head\.embedding_size"):
        LanguageModel(
            LmConfig(model=ModelConfig(embedding_size=5, hidden_sizes=(7,)), head=HeadConfig(tied=True)), V
        )
