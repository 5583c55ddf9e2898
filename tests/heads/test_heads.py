"""Every head against the formulas of the papers, written out naively in float64."""

import copy
import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from dialog.config import DialogConfig
from lm.config.load import load_config
from lm.errors import ConfigError
from lm.heads.config import HeadKind
from lm.heads.head import HEADS, Head, HeadConfig
from lm.heads.loss_options import LossOptions
from tests.support.plain_heads import (
    KINDS,
    MIXTURES,
    OF_SOFTMAXES,
    H,
    N,
    V,
    example,
    head_on,
    make_head,
    naive_probabilities,
    settings_of,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_log_probs_are_the_papers_formula(kind: str, scale: float) -> None:
    head = make_head(kind, context_scale=scale if kind in MIXTURES else 1.0)
    hidden, _, _ = example()
    log_probs = head.log_probs(hidden)
    torch.testing.assert_close(log_probs.exp(), naive_probabilities(head, hidden))
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(N, dtype=torch.float64))
    head.options = LossOptions(head.link, rows=7)
    with torch.no_grad():
        torch.testing.assert_close(head.log_probs(hidden), log_probs)
        low = head.float().log_probs(hidden.float())
        assert head.log_probs(hidden.float()[:0]).shape == (0, V)
        if kind != "relu":  # whose logarithm magnifies the rounding of logits near 0 without bound
            torch.testing.assert_close(low.double(), log_probs, rtol=1e-5, atol=1e-5)
            rounded = head.log_probs(hidden.float(), operand=head.output.rounded())
            torch.testing.assert_close(rounded, low, rtol=0.02, atol=0.05)
            assert not torch.equal(rounded, low)
            other = head.log_probs(hidden.float(), operand=torch.zeros_like(head.output.rounded()))
            assert not torch.equal(other, rounded), "what was rounded before is what is read"


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_head_has_a_loss(kind: str) -> None:
    head = make_head(kind).requires_grad_(False)
    hidden, targets, weights = example()
    loss = head.loss(hidden.detach(), targets, weights)
    assert not loss.requires_grad
    log_probs = naive_probabilities(head, hidden.detach()).log()
    torch.testing.assert_close(loss, -(weights * log_probs.gather(1, targets[:, None])[:, 0]).sum())
    (gradient,) = torch.autograd.grad(head.loss(hidden, targets, weights), hidden)
    assert gradient.abs().sum() > 0


def test_one_component_is_a_single_softmax_of_tanh_features() -> None:
    mos, moc, moss = (make_head(kind, components=1) for kind in ("mos", "moc", "moss"))
    moc.load_state_dict(mos.state_dict())
    moss.load_state_dict(mos.state_dict() | {"shift": torch.zeros(())})
    hidden, _, _ = example()
    features = torch.tanh(mos.latent(hidden))
    plain = Head(HeadConfig(), mos.size, V).double()
    plain.load_state_dict({"weight": mos.weight, "bias": mos.bias})
    curved = Head(HeadConfig(kind="sigsoftmax"), mos.size, V).double()
    curved.load_state_dict(plain.state_dict())
    torch.testing.assert_close(mos.log_probs(hidden), plain.log_probs(features))
    torch.testing.assert_close(moc.log_probs(hidden), plain.log_probs(features))
    torch.testing.assert_close(moss.log_probs(hidden), curved.log_probs(features))


def test_moc_keeps_the_rank_bound_and_mos_passes_it() -> None:
    """log P of MoC has rank at most E + 2 (bias, normaliser); MoS is not so bound (Yang et al. 2018, §2)."""
    size, contexts = 4, 60

    def rank(kind: str, **settings: object) -> int:
        config = HeadConfig(**(settings_of(kind) | {"embedding_size": size} | settings))
        head_wide = head_on(config, vocab=40).double()
        for parameter in head_wide.parameters():
            torch.nn.init.normal_(parameter)
        torch.nn.init.normal_(head_wide.bias)
        with torch.no_grad():
            return int(torch.linalg.matrix_rank(head_wide.log_probs(torch.randn(contexts, H).double() * 2)))

    assert rank("softmax") == size + 2
    assert rank("moc") == size + 2
    assert rank("mos") > 2 * size
    assert rank("moss") > 2 * size
    assert min(rank("sigsoftmax"), rank("sigmoid"), rank("relu")) > size + 2
    assert min(rank("mixtape"), rank("plif"), rank("doc"), rank("mfs")) > 2 * size
    assert rank("mixtape", components=1, gate_size=None, gated_words=0) == size + 2
    assert min(rank("softmax", temperature=form) for form in ("contextual", "sigmoid")) > 2 * size
    assert rank("softmax", temperature="constant") == size + 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_float64_copy_of_a_float32_head_is_exact_enough_for_ranks(kind: str) -> None:
    """In float32 a log-softmax has full numerical rank; in float64 E, the bias and the normaliser remain."""
    size, words, contexts = 4, 40, 60
    for output_bias in (True, False):
        embedding = torch.nn.Embedding(words, size)
        config = HeadConfig(
            embedding_size=size,
            tied=True,
            output_bias=output_bias,
            products="bfloat16",
            learn_context_scale=kind in MIXTURES,
            **settings_of(kind),
        )
        head = head_on(config, words, embedding.weight)
        for name, parameter in head.named_parameters():
            torch.nn.init.normal_(parameter, mean=3.0 * (name == "scale"))
        hidden = torch.randn(contexts, H)
        exact = copy.deepcopy(head).double()
        with torch.no_grad():
            log_probs = exact.log_probs(hidden.double())
            joint = exact.component_log_probs(hidden.double())
            single = head.log_probs(hidden)
            nll = exact.nll(hidden.double(), torch.arange(contexts) % words)
        assert {log_probs.dtype, joint.dtype, nll.dtype} == {torch.float64}
        assert {parameter.dtype for parameter in head.parameters()} == {torch.float32}
        torch.testing.assert_close(single.double(), log_probs, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(joint.logsumexp(1), log_probs, rtol=1e-12, atol=1e-12)
        sums = log_probs.exp().sum(1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-13)
        if kind == "softmax":
            assert numerical_rank(log_probs) == size + 1 + output_bias
            assert numerical_rank(single.double()) > size + 2


def numerical_rank(matrix: Tensor) -> int:
    """Singular values above ½·√(m + n + 1)·σ_max·ε, ε that of float64."""
    values = torch.linalg.svdvals(matrix)
    epsilon = torch.finfo(torch.float64).eps
    return int((values > 0.5 * math.sqrt(sum(matrix.shape) + 1) * values[0] * epsilon).sum())


def test_sigsoftmax_derivative_is_theorem_5() -> None:
    head = make_head("sigsoftmax", size=H)
    logits = torch.randn(V, dtype=torch.float64)

    def log_f(z: Tensor) -> Tensor:
        return head.link.log_normalised(z)

    jacobian = torch.autograd.functional.jacobian(log_f, logits)
    f = log_f(logits).exp()
    wanted = (torch.eye(V).double() - f[None, :]) * (2 - torch.sigmoid(logits))[None, :]
    torch.testing.assert_close(jacobian, wanted)


def test_sigsoftmax_tends_to_softmax_as_its_shift_grows() -> None:
    """Theorem 4: σ(z + b) → 1 as b → ∞."""
    head = make_head("sigsoftmax")
    plain = Head(HeadConfig(embedding_size=4), H, V).double()
    plain.load_state_dict({name: value for name, value in head.state_dict().items() if name != "shift"})
    hidden, _, _ = example()
    distances = []
    for shift in (0.0, 5.0, 10.0, 40.0):
        torch.nn.init.constant_(head.shift, shift)
        distances.append((head.log_probs(hidden) - plain.log_probs(hidden)).abs().max().item())
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.1
    assert distances[-1] < 1e-12


def test_component_log_probs_mix_to_log_probs() -> None:
    for kind in KINDS:
        head = make_head(kind)
        hidden = torch.randn(2, 3, H, dtype=torch.float64)
        joint = head.component_log_probs(hidden)
        assert joint.shape == (2, 3, 3 if kind in OF_SOFTMAXES else 1, V)
        torch.testing.assert_close(joint.logsumexp(-2), head.log_probs(hidden))
        _, log_prior = head.mixer.contexts(hidden)
        if log_prior is not None:
            torch.testing.assert_close(joint.logsumexp(-1), log_prior)


def test_component_temperature_tempers_the_logits_of_components() -> None:
    head = make_head("softmax")
    hidden, _, _ = example()
    tempered = torch.log_softmax(head.log_probs(hidden) / 2, -1)
    torch.testing.assert_close(head.log_probs(hidden, 2.0), tempered)
    mixture = make_head("mos")
    tempered = torch.log_softmax(mixture.log_probs(hidden) / 2, -1)
    assert (mixture.log_probs(hidden, 2.0) - tempered).abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_nll_and_log_probs_know_the_same_temperature(kind: str, temperature: float) -> None:
    head = make_head(kind)
    head.options = LossOptions(head.link, rows=4)
    hidden, targets, _ = example()
    gathered = -head.log_probs(hidden, component_temperature=temperature).gather(1, targets[:, None])[:, 0]
    nll = head.nll(hidden, targets, component_temperature=temperature)
    torch.testing.assert_close(nll, gathered)
    assert torch.equal(nll, head.nll(hidden, targets)) == (temperature == 1)
    assert not nll.requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_latent_dropout_is_shared_over_time_and_off_in_evaluation(kind: str) -> None:
    head = make_head(kind, latent_dropout=0.5)
    hidden = torch.randn(1, 3, H, dtype=torch.float64).expand(
        4, 3, H
    )  # (T, B, H), the same state at every time
    contexts, _ = head.mixer.contexts(hidden)
    torch.testing.assert_close(contexts[0], contexts[3])
    assert (contexts == 0).any()
    streams = torch.tensor([0, 1, 0, 1])
    flat, _ = head.mixer.contexts(hidden[0, :1].expand(4, H), streams)
    torch.testing.assert_close(flat[0], flat[2])
    assert (flat[0] - flat[1]).abs().max() > 1e-3
    head.eval()
    assert not (head.mixer.contexts(hidden)[0] == 0).any()


def test_tying_shares_the_embedding_and_refuses_a_wrong_one() -> None:
    embedding = torch.nn.Embedding(V, 4)
    head = Head(HeadConfig(kind="mos", components=2, embedding_size=4, tied=True), H, V, embedding.weight)
    assert head.weight is embedding.weight
    with pytest.raises(ConfigError, match=r"head\.tied"):
        Head(HeadConfig(tied=True), H, V, embedding.weight)
    with pytest.raises(ConfigError, match=r"head\.tied"):
        Head(HeadConfig(tied=True), H, V)


def test_mos_has_the_published_number_of_parameters() -> None:
    """The head of the PTB model of Yang et al. (2018): embedding, bias, latent with bias, prior without."""
    head = Head(HeadConfig(kind="mos", components=15, embedding_size=280), 620, 10_000)
    count = sum(parameter.numel() for parameter in head.parameters())
    assert count == 280 * 10_000 + 10_000 + 15 * 280 * 621 + 15 * 620


@pytest.mark.parametrize("kind", ["sigmoid", "relu"])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"components": 2}, r"components = 2: a {kind} head has one; set head\.components = 1"),
        (
            {"context_scale": 2.0},
            "context_scale belongs to head.kind = moc or .* or cpr; head.kind is {kind}",
        ),
        ({"learn_context_scale": True}, "context_scale belongs to head.kind = moc .*; head.kind is {kind}"),
        ({"learn_shift": True}, "learn_shift belongs to head.kind = sigsoftmax or moss; head.kind is {kind}"),
    ],
)
def test_baselines_refuse_what_they_do_not_have(kind: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message.format(kind=kind)):
        HeadConfig(kind=kind, **settings)


@pytest.mark.parametrize(("written", "meant"), [("sigmod", "sigmoid"), ("rleu", "relu"), ("ReLU", "relu")])
def test_a_misspelt_kind_is_told_the_right_one(written: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"got '{written}'; did you mean {meant}\\?"):
        load_config("smalltalk_softmax", DialogConfig, family="dialog", overrides=[f"head.kind={written}"])


def test_the_registry_and_the_configuration_know_the_same_kinds() -> None:
    assert tuple(HEADS) == get_args(HeadKind)
    description = HeadConfig.model_fields["kind"].description or ""
    assert description.removeprefix("kind of head: ").replace(" or", ",").split(", ") == list(HEADS)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_in_float64_has_exact_products(kind: str, smoothing: float) -> None:
    losses = []
    for products in ("float32", "bfloat16"):
        torch.manual_seed(1)
        head = make_head(kind, products=products, label_smoothing=smoothing)
        hidden, targets, _ = example()
        losses.append(head.objective(hidden.requires_grad_(), targets)[0].item())
    assert losses[0] == losses[1]


def test_initial_rows_are_uniform_in_a_tenth() -> None:
    rows = Head(HeadConfig(tied=False), 40, 500).weight.detach()
    assert float(rows.abs().max()) == pytest.approx(0.1, rel=0.01)
    assert float(rows.std()) == pytest.approx(0.1 / 3**0.5, rel=0.02)
