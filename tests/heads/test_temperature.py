"""Temperatures of words in contexts: the paper's formulas, what they can do, and the loss under them."""

import math

import pytest
import torch
from torch import Tensor

from lm.heads.head import Head, HeadConfig, prior_penalty
from lm.heads.loss_options import LossOptions
from lm.heads.output_layer import words_before
from tests.support.plain_heads import (
    KINDS,
    H,
    N,
    V,
    example,
    facet_logits,
    increasing,
    make_head,
    mixed_logits,
)

FORMS = ("contextual", "exponential", "additive", "sigmoid")


def tempered_head(kind: str, form: str, rows: int = 4, **settings: object) -> Head:
    rank = {} if form == "constant" else {"temperature_rank": 3}
    head = make_head(kind, temperature=form, **rank, **settings)
    head.options = LossOptions(head.link, rows=rows)
    return head


def naive_log_probs(head: Head, hidden: Tensor, tau: Tensor) -> Tensor:
    """log P with every tensor written out; τ (N, V)."""
    contexts, log_prior = head.mixer.contexts(hidden)
    logits = contexts @ head.weight.t() + head.bias
    if head.config.kind in ("mfs", "cpr"):
        logits = facet_logits(head, contexts)
    if head.config.kind == "mixtape":
        logits = mixed_logits(head, hidden)[:, None]
    logits = logits / tau[:, None]
    if head.config.kind == "plif":
        logits = increasing(head, logits)
    joint = head.link.log(logits, head.shift).log_softmax(-1)
    return (joint if log_prior is None else joint + log_prior[..., None]).logsumexp(1)


def naive_temperature(head: Head, hidden: Tensor) -> Tensor:
    if head.temperature is None:
        return torch.full((len(hidden), V), head.config.temperature_value, dtype=torch.float64)
    mu = hidden[:, : head.hidden_size] @ head.temperature.down.weight.t() @ head.temperature.up.weight.t()
    own = head.config
    return {
        "contextual": (mu.softmax(1) + own.temperature_alpha) / own.temperature_beta,
        "exponential": own.temperature_lambda ** mu.tanh(),
        "additive": mu.tanh() + own.temperature_lambda,
        "sigmoid": own.temperature_low + (own.temperature_high - own.temperature_low) * mu.sigmoid(),
    }[own.temperature]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [*FORMS, "constant"])
def test_everything_that_a_head_says_is_the_tempered_formula(kind: str, form: str) -> None:
    head = tempered_head(kind, form)
    hidden, targets, weights = example()
    tau = naive_temperature(head, hidden)
    torch.testing.assert_close(head.temperatures(hidden), tau)
    states = hidden[:, : head.hidden_size]
    torch.testing.assert_close(head.output.mean_word_temperature(states), tau.mean())
    wanted = naive_log_probs(head, hidden, tau)
    torch.testing.assert_close(head.log_probs(hidden), wanted)
    torch.testing.assert_close(head.component_log_probs(hidden).logsumexp(1), wanted)
    with torch.no_grad():
        torch.testing.assert_close(head.log_probs(hidden), wanted.detach())
        torch.testing.assert_close(head.log_probs(hidden, 1.7), naive_log_probs(head, hidden, 1.7 * tau))
    nll = -wanted.gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(head.nll(hidden, targets), nll)
    loss = head.loss(hidden, targets, weights)
    torch.testing.assert_close(loss, (weights * nll).sum())
    leaves = [hidden, *head.parameters()]
    for ours, theirs in zip(
        torch.autograd.grad(loss, leaves), torch.autograd.grad((weights * nll).sum(), leaves), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("form", FORMS)
def test_gradcheck_through_chunks_reaches_both_factors(form: str) -> None:
    head = tempered_head("mos", form)
    hidden, targets, weights = example()
    names, values = zip(*head.named_parameters(), strict=True)
    assert {"temperature.down.weight", "temperature.up.weight"} < set(names)

    def loss(hidden: Tensor, *parameters: Tensor) -> Tensor:
        bound = dict(zip(names, parameters, strict=True))
        with torch.nn.utils.stateless._reparametrize_module(head, bound):
            return head.loss(hidden, targets, weights)

    assert torch.autograd.gradcheck(loss, (hidden, *values), fast_mode=True)


def test_the_published_temperature_has_a_constant_mean_and_hardly_moves() -> None:
    """Eq. 5: whatever is learnt, mean τ is (1/V + α)/β, and no word is further from 2 than its share."""
    words = 10_000
    config = HeadConfig(temperature="contextual", temperature_rank=8)
    head = Head(config, 6, words).double()
    hidden = torch.randn(20, 6, dtype=torch.float64)
    for scale in (0.0, 1.0, 30.0):
        with torch.no_grad():
            head.temperature.up.weight.normal_(std=scale)
            tau = head.temperatures(hidden)
        mean = 2 * (1 + 1 / words)
        torch.testing.assert_close(tau.mean(1), torch.full((20,), mean, dtype=torch.float64))
        assert head.output.mean_word_temperature(hidden).item() == pytest.approx(mean, rel=1e-12)
        assert (tau > 2 + 0.01).sum(1).max() < 2 / 0.01  # shares sum to 1
        assert tau.median() < 2.0003


def test_without_factors_ct_mos_is_mos_at_the_constant_temperature() -> None:
    head = tempered_head("mos", "contextual")
    torch.nn.init.zeros_(head.temperature.up.weight)
    plain = tempered_head("mos", "constant", temperature_value=2 * (1 + 1 / V))
    plain.load_state_dict(
        {name: value for name, value in head.state_dict().items() if "temperature" not in name}
    )
    hidden, targets, _ = example()
    torch.testing.assert_close(head.log_probs(hidden), plain.log_probs(hidden))
    torch.testing.assert_close(head.loss(hidden, targets), plain.loss(hidden, targets))


@pytest.mark.parametrize(
    ("form", "low", "high"), [("exponential", 1 / 3, 3), ("additive", 2, 4), ("sigmoid", 0.5, 3.5)]
)
def test_the_other_temperatures_reach_both_ends_of_their_range(form: str, low: float, high: float) -> None:
    head = tempered_head("softmax", form)
    with torch.no_grad():
        head.temperature.up.weight.mul_(1000)
        tau = head.temperatures(torch.randn(200, H, dtype=torch.float64))
    assert low <= tau.min() < low + 0.01
    assert high - 0.01 < tau.max() <= high
    neutral = {"exponential": 1.0, "additive": 3.0, "sigmoid": 2.0}[form]
    assert head.temperatures(torch.zeros(1, H).double())[0].tolist() == pytest.approx([neutral] * V)


@pytest.mark.parametrize("form", [*FORMS, "constant"])
def test_the_loss_is_scaled_for_training_alone(form: str) -> None:
    head = tempered_head("mos", form, temperature_loss_scaling=True)
    hidden, targets, _ = example()
    objective, loss = head.objective(hidden, targets)
    torch.testing.assert_close(loss, head.nll(hidden, targets).sum())
    mean = naive_temperature(head, hidden).mean()
    torch.testing.assert_close(objective, mean * loss)
    wanted = torch.autograd.grad(head.loss(hidden, targets), [hidden])[0] * mean
    torch.testing.assert_close(torch.autograd.grad(objective, [hidden])[0], wanted)
    plain, same = tempered_head("mos", form).objective(hidden, targets)
    assert plain is same


def test_the_scaled_loss_has_all_terms_but_the_prior_penalty() -> None:
    terms = {"label_smoothing": 0.1, "unlikelihood": 0.5, "past_decode": 0.3}
    hidden, targets, _ = example()
    words = {"repeated": words_before(targets[None])[0], "present": targets.roll(1)}
    plain = tempered_head("mos", "sigmoid", **terms)
    scaled = tempered_head("mos", "sigmoid", **terms, temperature_loss_scaling=True, prior_penalty=0.7)
    scaled.load_state_dict(plain.state_dict())
    expected = plain.temperatures(hidden).mean() * plain.objective(hidden, targets, **words)[0]
    expected = expected + 0.7 * len(targets) * prior_penalty(scaled.mixer.mixture(hidden).log_prior)
    torch.testing.assert_close(scaled.objective(hidden, targets, **words)[0], expected)
    described = HeadConfig.model_fields["temperature_loss_scaling"].description
    assert described is not None
    assert "but not prior_penalty" in described


def test_a_chunk_decides_the_memory_and_not_the_number_of_tokens() -> None:
    head = tempered_head("mos", "sigmoid", rows=6)
    longest = 0

    def watch(module: torch.nn.Module, inputs: tuple[Tensor], tau: Tensor) -> None:
        nonlocal longest
        longest = max(longest, len(tau))

    head.temperature.register_forward_hook(watch)
    hidden, targets, _ = example()
    head.loss(hidden, targets).backward()
    head.nll(hidden, targets)
    head.output.mean_word_temperature(hidden)
    assert longest == 2  # six rows of three components


def test_low_precision_and_extreme_logits() -> None:
    head = tempered_head("mos", "contextual", products="bfloat16").float()
    hidden, targets, _ = example()
    low = head.loss(hidden.float(), targets)
    exact = head.nll(hidden.float(), targets).sum()
    assert low.item() == pytest.approx(exact.item(), rel=2e-2)
    with torch.no_grad():
        head.bias.copy_(torch.linspace(-300, 300, V))
    log_probs = head.log_probs(hidden.float())
    assert log_probs.isfinite().all()
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(N))
    assert math.isfinite(head.loss(hidden.float(), targets).item())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature_rank": 3}, "temperature_rank belongs to head.temperature = contextual or"),
        ({"temperature": "sigmoid", "temperature_beta": 1.0}, "temperature_beta belongs to .* contextual"),
        ({"temperature_loss_scaling": True}, "loss_scaling belongs to .*; head.temperature is none"),
        ({"temperature": "sigmoid", "temperature_low": 4.0}, "must be below temperature_high = 3.5"),
        ({"temperature": "sigmoid", "temperature_low": 3.5}, "must be below temperature_high = 3.5"),
    ],
)
def test_a_setting_of_another_temperature_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HeadConfig(**settings)
