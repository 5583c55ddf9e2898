"""Every head against the formulas of the papers, written out naively in float64."""

import math

import pytest
import torch
from torch import Tensor

from lm.errors import ConfigError
from lm.heads import HEADS, Head, HeadConfig
from lm.mixture_loss import LossOptions

H, V, N = 5, 13, 9
KINDS = sorted(HEADS)


def make_head(kind: str, components: int = 3, size: int = 4, **settings: object) -> Head:
    """A float64 head with every optional part that the kind has."""
    if kind in ("softmax", "sigsoftmax"):
        components = 1
    shift = kind in ("sigsoftmax", "moss")
    config = HeadConfig(kind=kind, components=components, embedding_size=size, learn_shift=shift, **settings)
    head = Head(config, H, V).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return head


def naive_probabilities(head: Head, hidden: Tensor) -> Tensor:
    """The distribution in the probability domain, every tensor written out."""

    def normalise(logits: Tensor, sigmoid: bool, shift: Tensor | None) -> Tensor:
        g = logits.exp()
        if sigmoid:
            g = g * torch.sigmoid(logits + (0 if shift is None else shift))
        return g / g.sum(-1, keepdim=True)

    kind, sigmoid = head.config.kind, head.config.kind in ("sigsoftmax", "moss")
    if kind in ("softmax", "sigsoftmax"):
        state = hidden if head.projection is None else hidden @ head.projection.weight.t()
        return normalise(state @ head.weight.t() + head.bias, sigmoid, head.shift)
    latent = torch.tanh(hidden @ head.latent.weight.t() + head.latent.bias) * head.scale
    latent = latent.view(len(hidden), head.components, head.size)
    prior = torch.ones(len(hidden), 1).double()
    if head.prior is not None:
        prior = normalise(hidden @ head.prior.weight.t(), kind == "moss", None)
    if kind == "moc":
        mixed = (prior[..., None] * latent).sum(1)
        return normalise(mixed @ head.weight.t() + head.bias, False, None)
    parts = normalise(latent @ head.weight.t() + head.bias, sigmoid, head.shift)
    return (prior[..., None] * parts).sum(1)


def example() -> tuple[Tensor, Tensor, Tensor]:
    hidden = torch.randn(N, H, dtype=torch.float64, requires_grad=True)
    return hidden, torch.randint(0, V, (N,)), torch.rand(N, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_log_probs_are_the_papers_formula(kind: str, scale: float) -> None:
    mixture = kind not in ("softmax", "sigsoftmax")
    head = make_head(kind, context_scale=scale if mixture else 1.0)
    hidden, _, _ = example()
    log_probs = head.log_probs(hidden)
    torch.testing.assert_close(log_probs.exp(), naive_probabilities(head, hidden))
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(N, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 4, 1000])
def test_loss_nll_and_log_probs_agree_for_every_chunk_size(kind: str, rows: int) -> None:
    head = make_head(kind)
    head._options = LossOptions(head.parts.link, rows=rows)
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
    head._options = LossOptions(head.parts.link, rows=4)
    hidden = torch.randn(5, H, dtype=torch.float64, requires_grad=True)
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

    assert torch.autograd.gradcheck(loss, (hidden, weights, *values))


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
    assert wanted > 50
    torch.testing.assert_close(single.grad.double(), hidden.grad, rtol=1e-3, atol=1e-3)
    log_probs = head.log_probs(single)
    assert log_probs.isfinite().all()
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(N))


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_products_and_hidden_states(kind: str) -> None:
    exact = make_head(kind)
    low = make_head(kind, products="bfloat16").float()
    low.load_state_dict(exact.state_dict())
    hidden, targets, _ = example()
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

    def rank(kind: str) -> int:
        head = make_head(kind, components=3, size=size)
        head_wide = Head(head.config, H, 40).double()
        torch.nn.init.normal_(head_wide.weight)
        torch.nn.init.normal_(head_wide.bias)
        with torch.no_grad():
            return int(torch.linalg.matrix_rank(head_wide.log_probs(torch.randn(contexts, H).double() * 2)))

    assert rank("softmax") == size + 2
    assert rank("moc") == size + 2
    assert rank("mos") > 2 * size
    assert rank("moss") > 2 * size
    assert rank("sigsoftmax") > size + 2


def test_sigsoftmax_derivative_is_theorem_5() -> None:
    head = make_head("sigsoftmax", size=H)
    logits = torch.randn(V, dtype=torch.float64)

    def log_f(z: Tensor) -> Tensor:
        return head.parts.link.log_normalised(z)

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
        assert joint.shape == (2, 3, 3 if kind in ("mos", "moss") else 1, V)
        torch.testing.assert_close(joint.logsumexp(-2), head.log_probs(hidden))
        _, log_prior = head.contexts(hidden)
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


def test_latent_dropout_is_shared_over_time_and_off_in_evaluation() -> None:
    head = make_head("mos", latent_dropout=0.5)
    hidden = torch.randn(1, 3, H, dtype=torch.float64).expand(
        4, 3, H
    )  # (T, B, H), the same state at every time
    contexts, _ = head.contexts(hidden)
    assert torch.equal(contexts[0], contexts[3])
    assert (contexts == 0).any()
    streams = torch.tensor([0, 1, 0, 1])
    flat, _ = head.contexts(hidden[0, :1].expand(4, H), streams)
    assert torch.equal(flat[0], flat[2])
    assert not torch.equal(flat[0], flat[1])
    head.eval()
    assert not (head.contexts(hidden)[0] == 0).any()


def test_tying_shares_the_embedding_and_refuses_a_wrong_one() -> None:
    embedding = torch.nn.Embedding(V, 4)
    head = Head(HeadConfig(kind="mos", components=2, embedding_size=4, tied=True), H, V, embedding.weight)
    assert head.weight is embedding.weight
    with pytest.raises(ConfigError, match=r"head\.tied"):
        Head(HeadConfig(tied=True), H, V, embedding.weight)
    with pytest.raises(ConfigError, match=r"head\.tied"):
        Head(HeadConfig(tied=True), H, V)


def test_learned_scale_and_shift_receive_gradients() -> None:
    head = make_head("moss", learn_context_scale=True, context_scale=4.0)
    hidden, targets, _ = example()
    head.loss(hidden, targets).backward()
    assert head.scale.grad.abs() > 0
    assert head.shift.grad.abs() > 0


def test_mos_has_the_published_number_of_parameters() -> None:
    """The head of the PTB model of Yang et al. (2018): embedding, bias, latent with bias, prior without."""
    head = Head(HeadConfig(kind="mos", components=15, embedding_size=280), 620, 10_000)
    count = sum(parameter.numel() for parameter in head.parameters())
    assert count == 280 * 10_000 + 10_000 + 15 * 280 * 621 + 15 * 620


def test_scratch_memory_does_not_grow_with_the_number_of_tokens() -> None:
    """What one pass holds besides inputs and gradients is bounded by the chunk."""
    options = LossOptions(HEADS["mos"].link)
    assert options.tokens_per_chunk(15, 10_000) * 15 * 10_000 * 4 <= 2**25
    assert options.tokens_per_chunk(15, 33_278) * 15 * 33_278 * 4 <= 2**25
    assert options.tokens_per_chunk(5000, 10) == 1


def test_no_tokens_are_no_loss() -> None:
    head = make_head("mos")
    hidden = torch.empty(0, H, dtype=torch.float64)
    targets = torch.empty(0, dtype=torch.long)
    assert head.loss(hidden, targets).item() == 0
    assert head.nll(hidden, targets).shape == (0,)
    assert head.log_probs(hidden).shape == (0, V)
    assert math.isclose(head.log_probs(torch.zeros(1, H).double()).exp().sum().item(), 1, rel_tol=1e-9)
