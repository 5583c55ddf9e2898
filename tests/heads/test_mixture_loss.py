"""The one-pass loss, its gradients and its memory, against formulas that keep every tensor."""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lm.heads.head import HEADS, Head
from lm.heads.links import EXP, SIGSOFTMAX, Link
from lm.heads.loss_options import LossOptions, Output
from lm.heads.mixture_loss import PACKED, one_pass_loss, one_pass_nll
from tests.support.launching import ROOT
from tests.support.peak_memory import MEASURABLE, measured, peak, status
from tests.support.plain_heads import KINDS, H, N, V, example, make_head, naive_probabilities


def clear_of_kinks(head: Head, hidden: Tensor) -> Head:
    """``head``; afterwards rounding changes no sign of the logits of a relu head, no rank of a cpr head."""
    if head.config.kind == "relu":
        with torch.no_grad():
            head.weight.mul_(0.5)
            head.bias.copy_(torch.tensor([4.0, -4.0]).repeat(V)[:V])
            contexts, _ = head.mixer.contexts(hidden)
            logits = contexts @ head.weight.t() + head.bias
        assert logits.abs().min() > 0.3
        assert logits.min() < 0 < logits.max()
    if head.config.kind == "cpr":
        with torch.no_grad():
            head.weight.mul_(0.1)
            head.bias.copy_(torch.linspace(-3, 3, V))
            contexts, _ = head.mixer.contexts(hidden)
            logits = contexts[:, 0] @ head.weight.t() + head.bias
        assert logits.sort().values.diff().min() > 0.02
    return head


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 4, 1000])
def test_loss_nll_and_log_probs_agree_for_every_chunk_size(kind: str, rows: int) -> None:
    head = make_head(kind)
    head.options = LossOptions(head.link, rows=rows)
    hidden, targets, weights = example()
    loss = head.loss(hidden, targets, weights)
    nll = head.nll(hidden, targets)
    gathered = -head.log_probs(hidden).gather(1, targets[:, None])[:, 0]
    naive = -(naive_probabilities(head, hidden).gather(1, targets[:, None])[:, 0].log())
    torch.testing.assert_close(nll, gathered)
    torch.testing.assert_close(nll, naive)
    torch.testing.assert_close(loss, (weights * naive).sum())
    wanted = torch.autograd.grad((weights * naive).sum(), [hidden, *head.parameters()])
    got = torch.autograd.grad(3 * loss, [hidden, *head.parameters()])
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, 3 * theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck_through_chunks(kind: str) -> None:
    head = make_head(kind, components=2, size=3)
    head.options = LossOptions(head.link, rows=4)
    hidden = torch.randn(5, H, dtype=torch.float64, requires_grad=True)
    clear_of_kinks(head, hidden)
    targets = torch.randint(0, V, (5,))
    weights = torch.rand(5, dtype=torch.float64, requires_grad=True)
    names, values = zip(*head.named_parameters(), strict=True)

    def loss(hidden: Tensor, weights: Tensor, *parameters: Tensor) -> Tensor:
        class Bound(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.head = head

            def forward(self) -> Tensor:
                return self.head.loss(hidden, targets, weights)

        bound = {f"head.{name}": value for name, value in zip(names, parameters, strict=True)}
        return torch.func.functional_call(Bound(), bound, ())

    assert torch.autograd.gradcheck(loss, (hidden, weights, *values), fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("magnitude", [300.0, -300.0])
def test_extreme_logits_are_finite_and_right(kind: str, magnitude: float) -> None:
    """float32 at |z| = 300, where exp(z) and the papers' log(p + 1e-8) fail, against float64."""
    exact = make_head(kind)
    with torch.no_grad():
        exact.weight.mul_(60 / exact.weight.abs().amax())
        exact.bias.copy_(torch.linspace(0, magnitude, V))
    head = make_head(kind).float()
    head.load_state_dict(exact.state_dict())
    hidden, targets, _ = example()
    single = hidden.detach().float().requires_grad_()
    wanted, loss = exact.loss(hidden, targets), head.loss(single, targets)
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-4, atol=1e-4)
    wanted.backward()
    loss.backward()
    assert wanted > N * math.log(V)  # worse than a uniform guess
    torch.testing.assert_close(single.grad.double(), hidden.grad, rtol=1e-3, atol=1e-3)
    log_probs = head.log_probs(single)
    assert log_probs.isfinite().all()
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(N))


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_products_and_hidden_states(kind: str) -> None:
    hidden, targets, _ = example()
    exact = clear_of_kinks(make_head(kind), hidden)
    low = make_head(kind, products="bfloat16").float()
    low.load_state_dict(exact.state_dict())
    single = hidden.detach().float().requires_grad_()
    exact.loss(hidden, targets).backward()
    loss = low.loss(single, targets)
    loss.backward()
    torch.testing.assert_close(loss.double(), exact.loss(hidden, targets), rtol=2e-2, atol=0)
    error = (single.grad.double() - hidden.grad).norm() / hidden.grad.norm()
    assert error < 2e-2
    torch.testing.assert_close(
        low.nll(single, targets).double(), exact.nll(hidden, targets), rtol=1e-4, atol=1e-4
    )
    half = exact.bfloat16()
    log_probs = half.log_probs(hidden.bfloat16())
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(N))


@pytest.mark.parametrize("link", [EXP, SIGSOFTMAX], ids=["exp", "sigsoftmax"])
@pytest.mark.parametrize("components", [1, 5])
@pytest.mark.parametrize("learnt", [0, 20])
def test_gradients_with_bfloat16_products_are_within_a_two_thousandth(
    link: Link, components: int, learnt: int
) -> None:
    """At the start of a training, and where some targets are all but certain, others still unlikely.

    With targets' logits rounded as all others are, mixtures' would not be at the start; with p − 1 rounded
    where p is near 1, no head's would be later.
    """
    weight = torch.empty(3000, 100).uniform_(-0.1, 0.1)
    targets = torch.randint(3000, (60,))
    contexts = torch.tanh(torch.randn(60, components, 100))
    contexts += learnt * torch.rand(60, 1, 1) * weight[targets][:, None]
    log_prior, bias = torch.randn(60, components).log_softmax(1), torch.randn(3000).mul_(0.1)
    shift = torch.tensor(-0.5) if link is SIGSOFTMAX else None
    given = (contexts, log_prior, weight, bias, shift)
    leaves = [leaf.requires_grad_() for leaf in given if leaf is not None]

    def gradients(bf16_products: bool) -> tuple[Tensor, ...]:
        options, output = LossOptions(link, bf16_products), Output(weight, bias, shift)
        loss = one_pass_loss(contexts, log_prior, output, targets, None, options)
        return loss, *torch.autograd.grad(loss, leaves)

    for exact, rounded in zip(gradients(False), gradients(True), strict=True):
        assert (exact - rounded).norm() <= 5e-4 * exact.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_streams_of_a_flat_batch_are_the_columns_of_a_rectangular_one(kind: str) -> None:
    head = make_head(kind, latent_dropout=0.5)
    hidden, targets = torch.randn(4, 3, H, dtype=torch.float64), torch.randint(0, V, (4, 3))
    columns = torch.arange(3).repeat(4)
    totals = []
    for call in (
        lambda: head.loss(hidden, targets),
        lambda: head.loss(hidden.view(12, H), targets.view(12), streams=columns),
    ):
        torch.manual_seed(1)
        totals.append(call())
    torch.testing.assert_close(*totals)
    torch.manual_seed(1)
    assert abs(head.loss(hidden.view(12, H), targets.view(12)) - totals[0]) > 1e-6


def test_learned_scale_and_shift_receive_gradients() -> None:
    head = make_head("moss", learn_context_scale=True, context_scale=4.0)
    hidden, targets, _ = example()
    head.loss(hidden, targets).backward()
    assert head.scale.grad.abs() > 0
    assert head.shift.grad.abs() > 0


def loss_of(tokens: int, rows: int) -> Callable[[], None]:
    """A loss of 4 components and 20,000 words, with its gradients, in chunks of so many rows; 0 = default."""
    sizes = (tokens, 4, 8), (tokens, 4), (20_000, 8), (20_000,)
    contexts, scores, weight, bias = (torch.randn(size, requires_grad=True) for size in sizes)
    targets = torch.randint(20_000, (tokens,))

    def run() -> None:
        output, options = Output(weight, bias, None), LossOptions(EXP, rows=rows)
        one_pass_loss(contexts, scores.log_softmax(1), output, targets, None, options).backward()

    return run


def peak_of_loss(case: tuple[int, int]) -> float:
    loss_of(128, 0)()
    return peak(loss_of(*case)) / 1e6


def left_by_losses(case: object) -> float:
    """What two further losses of 15 components leave."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from benchmarks.head import Inputs, ours

    inputs = Inputs(15, 10_000, tokens=200)
    inputs.gradients(ours(LossOptions(EXP), inputs))
    before = status("RssAnon")
    for _ in range(2):
        inputs.gradients(ours(LossOptions(EXP), inputs))
    return (status("RssAnon") - before) / 1e6


NEEDS = pytest.mark.skipif(not MEASURABLE, reason="no high-water mark to reset")


@NEEDS
def test_memory_does_not_grow_with_the_number_of_tokens() -> None:
    """Eight times the tokens have 290 MB more of logits, which show where all are in one chunk."""
    few, many, whole = measured(peak_of_loss, [(128, 0), (1024, 0), (1024, 4096)])
    assert many - few < 8, f"MB at the peak: {few}, {many}"
    assert whole - few > 200, "a peak that grows would not be seen"


@NEEDS
def test_memory_of_a_loss_returns_to_the_system() -> None:
    """With gradients and logits on the heap, two further calls leave 20 to 30 MB more."""
    assert measured(left_by_losses, [None])[0] < 10


def test_a_chunk_of_logits_is_bounded() -> None:
    options = LossOptions(HEADS["mos"].link)
    assert options.tokens_per_chunk(15, 10_000) * 15 * 10_000 * 4 <= 12 * 2**20
    assert options.tokens_per_chunk(15, 33_278) * 15 * 33_278 * 4 <= 2 * 12 * 2**20  # MIN_ROWS
    assert options.tokens_per_chunk(5000, 10) == 1
    half = replace(options, bf16_products=True)
    assert options.tokens_per_chunk(1, 10_000) == 314
    assert half.tokens_per_chunk(1, 10_000) == 608  # a multiple of 32
    assert half.tokens_per_chunk(5, 10_000) == 96
    assert half.tokens_per_chunk(15, 10_000) == 32


def test_no_tokens_are_no_loss() -> None:
    head = make_head("mos")
    hidden = torch.empty(0, H, dtype=torch.float64)
    targets = torch.empty(0, dtype=torch.long)
    assert head.loss(hidden, targets).item() == 0
    assert head.nll(hidden, targets).shape == (0,)
    assert head.log_probs(hidden).shape == (0, V)
    assert math.isclose(head.log_probs(torch.zeros(1, H).double()).exp().sum().item(), 1, rel_tol=1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        {"prior_penalty": 0.1},
        {"prior_penalty": 0.1, "prior_penalty_of": "streams"},
        {"temperature": "exponential", "temperature_loss_scaling": True},
    ],
)
def test_no_tokens_have_no_penalty(settings: dict[str, Any]) -> None:
    head = make_head("mos", **settings)
    hidden = torch.empty(0, H, dtype=torch.float64, requires_grad=True)
    objective, loss = head.objective(hidden, torch.empty(0, dtype=torch.long))
    assert (objective.item(), loss.item()) == (0, 0)
    objective.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in head.parameters())


def test_a_head_in_float64_has_exact_products() -> None:
    exact, rounded = make_head("mos"), make_head("mos", products="bfloat16")
    rounded.load_state_dict(exact.state_dict())
    hidden, targets = torch.randn(5, H, dtype=torch.float64), torch.randint(V, (5,))
    losses = [head.loss(hidden, targets) for head in (exact, rounded)]
    assert torch.equal(*losses)
    losses[1].backward()
    with torch.no_grad():
        near = exact.log_probs(hidden, operand=exact.output.rounded())
        torch.testing.assert_close(near.double(), exact.log_probs(hidden), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("link", [EXP, SIGSOFTMAX])
@pytest.mark.parametrize("bf16", [False, True])
def test_small_posteriors_are_left_out_of_contexts_and_matrix_alone(link: Link, bf16: bool) -> None:
    torch.manual_seed(2)
    bound, count = 0.15, (40, 4, 6)
    contexts = torch.randn(count, requires_grad=True)
    prior = torch.randn(count[:2]).mul(2).requires_grad_()
    weight, bias = torch.randn(V, 6, requires_grad=True), torch.randn(V, requires_grad=True)
    targets, weights = torch.randint(0, V, (40,)), torch.rand(40) + 0.5
    weights[7] = 0  # padding: exactly nothing is left of it
    weights[8] = -0.5

    def gradients(skip_below: float) -> tuple[Tensor, ...]:
        options = LossOptions(link, bf16_products=bf16, rows=44, skip_below=skip_below)
        output = Output(weight, bias, None)
        loss = one_pass_loss(contexts, prior.log_softmax(1), output, targets, weights, options)
        return loss, *torch.autograd.grad(loss, (contexts, prior, weight, bias))

    exact, some, hardly = gradients(0), gradients(bound), gradients(1e-30)
    for wanted, got in zip(exact, hardly, strict=True):
        torch.testing.assert_close(got, wanted)
    for index in (0, 2, 4):  # loss, prior, bias
        assert torch.equal(some[index], exact[index])
    scores = link.log_normalised(contexts.detach() @ weight.detach().t() + bias.detach(), None)
    joint = scores.gather(2, targets[:, None, None].expand(-1, 4, 1))[..., 0] + prior.detach().log_softmax(1)
    posterior = joint.softmax(1)
    small, large = posterior < bound, posterior >= bound
    assert (posterior - bound).abs().min() > 0.002, "rounding would decide"
    assert 0.3 < small.float().mean() < 0.9
    assert not some[1][small].any()
    torch.testing.assert_close(some[1][large], exact[1][large])
    lost = (some[3] - exact[3]).abs().sum(0).max()
    slope = 2 if link is SIGSOFTMAX else 1
    terms = (posterior * ~large * weights.abs()[:, None])[..., None] * contexts.detach().abs()
    assert 0 < lost <= 2 * slope * terms.sum((0, 1)).max()


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("link", [EXP, SIGSOFTMAX])
def test_what_is_left_of_the_gradient_of_a_token_that_is_all_but_certain_is_right(
    link: Link, bf16: bool
) -> None:
    """1 − p = 3e-7 or so, where the difference of 1 and p in float32 has no digit left."""
    contexts, weight, bias = torch.ones(1, 1, 1), torch.zeros(50, 1), torch.zeros(50)
    bias[7] = 19.0 if link is EXP else 18.0
    leaves = [leaf.requires_grad_() for leaf in (contexts, weight, bias)]

    def gradient(dtype: torch.dtype) -> Tensor:
        wide = [leaf.to(dtype) for leaf in leaves]
        output, options = Output(wide[1], wide[2], None), LossOptions(link, bf16 and dtype != torch.float64)
        loss = one_pass_loss(wide[0], wide[0].new_zeros(1, 1), output, torch.tensor([7]), None, options)
        return torch.autograd.grad(loss, leaves[2])[0][7]

    exact = gradient(torch.float64)
    assert -1e-6 < exact < -1e-7
    torch.testing.assert_close(gradient(torch.float32), exact.float(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("link", [EXP, SIGSOFTMAX])
@pytest.mark.parametrize("bf16", [False, True])
def test_huge_logits_and_a_single_word_give_finite_losses_and_gradients(link: Link, bf16: bool) -> None:
    for words, magnitude in ((40, 3e4), (40, -3e4), (1, 1.0)):
        contexts, weight = torch.randn(6, 2, 8) * magnitude, torch.randn(words, 8)
        targets = (contexts[:, 0] @ weight.t()).argmax(1)
        leaves = [leaf.requires_grad_() for leaf in (contexts, weight)]
        prior = torch.zeros(6, 2).log_softmax(1)
        output, options = Output(weight, None, None), LossOptions(link, bf16)
        loss = one_pass_loss(contexts, prior, output, targets, None, options)
        assert all(found.isfinite().all() for found in (loss, *torch.autograd.grad(loss, leaves)))
        if words == 1:
            assert loss.item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("words", [PACKED - 1, PACKED, 2 * PACKED + 1])
def test_vocabularies_of_several_blocks_of_words_have_the_formulas_loss(words: int) -> None:
    contexts, weight, bias = torch.randn(7, 2, 5), torch.randn(words, 5), torch.randn(words)
    log_prior, targets = torch.randn(7, 2).log_softmax(1), torch.randint(words, (7,))
    nll = one_pass_nll(contexts, log_prior, Output(weight, bias, None), targets, LossOptions(EXP))
    log_p = torch.log_softmax(contexts.double() @ weight.double().t() + bias, 2)
    joint = log_prior + log_p[torch.arange(7), :, targets]
    torch.testing.assert_close(nll.double(), -joint.logsumexp(1), rtol=1e-6, atol=1e-6)


def test_gradients_can_be_asked_for_twice() -> None:
    """They are handed out without a copy, so what was done to the first is not in the second."""
    head = make_head("mos")
    hidden, targets, _ = example()
    parameters = [parameter for parameter in head.parameters() if parameter.requires_grad]
    loss = head.loss(hidden, targets)
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    kept = [gradient.clone() for gradient in first]
    for gradient in first:
        gradient.zero_()
    second = torch.autograd.grad(2 * loss, parameters)
    for gradient, wanted in zip(second, kept, strict=True):
        assert torch.equal(gradient, 2 * wanted)


def test_without_gradients_the_loss_is_the_sum_of_exact_losses() -> None:
    head = make_head("mos", products="bfloat16")
    hidden, targets, weights = example()
    with torch.no_grad():
        assert torch.equal(head.loss(hidden, targets, weights), (weights * head.nll(hidden, targets)).sum())
