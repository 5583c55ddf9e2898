"""What only Mixtape, PLIF and DOC have; what all heads share is in test_heads and test_mixture_loss."""

import pytest
import torch

from lm.errors import ConfigError
from lm.heads.head import Head, HeadConfig, prior_penalty
from lm.heads.mixtape import leaves
from lm.heads.plif import PiecewiseLinear
from tests.support.plain_heads import LOWER, H, N, V, example, head_on, make_head, settings_of


def test_a_function_of_equal_slopes_is_a_softmax() -> None:
    """PLIF starts as the identity, and so within the rank bound."""
    head = Head(HeadConfig(kind="plif", intervals=50), H, V).double()
    plain = Head(HeadConfig(), H, V).double()
    plain.load_state_dict({"weight": head.weight, "bias": head.bias})
    hidden, _, _ = example()
    logits = torch.tensor([-99.0, -20.0, 0.0, 3.3, 99.0], dtype=torch.float64)
    torch.testing.assert_close(head.pointwise(logits), logits)
    torch.testing.assert_close(head.log_probs(hidden), plain.log_probs(hidden))


def test_the_function_of_plif_increases() -> None:
    head = make_head("plif")
    values = head.pointwise(torch.linspace(-9, 9, 999, dtype=torch.float64))
    assert (values.diff() > 0).all()


@pytest.mark.parametrize("intervals", [1, 7, 8])
def test_the_function_of_plif_is_its_slopes_in_a_row(intervals: int) -> None:
    """Also beyond the range, however far, and through 0 if a knot is there."""
    function = PiecewiseLinear(intervals, 2.0).double()
    torch.nn.init.normal_(function.slopes)
    slopes = torch.nn.functional.softplus(function.slopes.detach())
    knots = torch.linspace(-2, 2, intervals + 1, dtype=torch.float64)
    middle = knots[intervals // 2]
    logits = torch.cat((torch.linspace(-3, 3, 50, dtype=torch.float64), torch.tensor([-1e30, 1e19, 1e30])))
    edges = torch.cat((torch.tensor([-torch.inf]), knots[1:-1], torch.tensor([torch.inf])))
    inside = (logits[:, None].clamp(edges[:-1], edges[1:]) - middle.clamp(edges[:-1], edges[1:])).nan_to_num()
    wanted = middle + (inside * slopes).sum(1)
    torch.testing.assert_close(function(logits), wanted)
    assert torch.autograd.gradcheck(function, torch.randn(20, dtype=torch.float64).requires_grad_())


def test_slopes_that_no_logit_meets_have_no_gradient() -> None:
    """Not even that of rounding, in which Adam would see a direction."""
    function = PiecewiseLinear(1000, 20.0)
    logits = torch.randn(50, 4000).mul_(0.5).requires_grad_()
    function(logits).log_softmax(1)[:, 0].sum().backward()
    at = torch.linspace(-20, 20, 1001)
    low, high = float(logits.detach().min()), float(logits.detach().max())
    unmet = (at[1:] < low) | (at[:-1] > high)
    assert unmet.sum() > 800
    grad = function.slopes.grad
    assert grad is not None
    assert (grad[unmet] == 0).all()
    exact = PiecewiseLinear(1000, 20.0).double()
    exact(logits.detach().double()).log_softmax(1)[:, 0].sum().backward()
    torch.testing.assert_close(grad.double(), exact.slopes.grad, rtol=1e-4, atol=1e-4)


def test_rare_words_share_one_gate() -> None:
    """With gates for no word but the most frequent, the logits of the others are within the rank bound."""
    head = head_on(
        HeadConfig(**(settings_of("mixtape") | {"embedding_size": 4, "gated_words": 1})), 40
    ).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    with torch.no_grad():
        log_probs = head.log_probs(torch.randn(60, H, dtype=torch.float64))
    assert int(torch.linalg.matrix_rank(log_probs[:, 1:])) == 4 + 2


def test_no_more_words_have_gates_than_there_are() -> None:
    many, all_words = (head_on(HeadConfig(kind="mixtape", components=2, gated_words=n)) for n in (99, 0))
    assert many.gates.words.shape == all_words.gates.words.shape == (V, H)


def test_leaves_of_a_tree_sum_to_one_and_follow_its_gates() -> None:
    gates = torch.rand(3, 7, 5, dtype=torch.float64)
    shares = leaves(gates)
    assert shares.shape == (3, 8, 5)
    torch.testing.assert_close(shares.sum(1), torch.ones(3, 5, dtype=torch.float64))
    torch.testing.assert_close(shares[:, 5], (1 - gates[:, 0]) * gates[:, 2] * (1 - gates[:, 5]))


def test_doc_without_difference_between_layers_is_mos() -> None:
    doc = make_head("doc", components=3)
    config = HeadConfig(kind="mos", components=3, embedding_size=4)
    mos = Head(config, H, V).double()
    with torch.no_grad():
        mos.latent.weight.zero_()
        mos.latent.weight[: 2 * 4, :-LOWER] = doc.latent.weight
        mos.latent.weight[2 * 4 :, -LOWER:] = doc.lower[0].weight
        mos.latent.bias.copy_(torch.cat((doc.latent.bias, doc.lower[0].bias)))
        mos.prior.weight.copy_(torch.cat((doc.prior.weight, torch.zeros(3, LOWER).double()), 1))
        mos.weight.copy_(doc.weight)
        mos.bias.copy_(doc.bias)
    hidden, _, _ = example()
    torch.testing.assert_close(doc.log_probs(hidden), mos.log_probs(hidden))


def test_the_penalty_on_the_prior_is_the_squared_coefficient_of_variation() -> None:
    head = make_head("doc", prior_penalty=0.5)
    hidden, targets, _ = example()
    objective, loss = head.objective(hidden, targets)
    totals = head.mixer.contexts(hidden)[1].exp().sum(0)
    mean = totals.mean()
    variation = ((totals - mean) ** 2).mean() / mean**2
    torch.testing.assert_close(objective, loss + N * 0.5 * variation)
    torch.testing.assert_close(loss, head.loss(hidden, targets))
    even = torch.full((4, 3), 1 / 3, dtype=torch.float64).log()
    assert prior_penalty(even).item() == pytest.approx(0)


@pytest.mark.parametrize("flat", [False, True])
def test_the_penalty_of_streams_is_that_of_the_authors_code(flat: bool) -> None:
    """main.py of doc_lm: shares (T, B, K) summed over time, their unbiased variance K − 1 times."""
    head = make_head("doc", prior_penalty=0.5, prior_penalty_of="streams")
    hidden = torch.randn(7, 4, example()[0].shape[-1], dtype=torch.float64)
    targets = torch.randint(V, (7, 4))
    streams = torch.arange(4).repeat(7)
    batch = (hidden.flatten(0, 1), targets.flatten(), streams) if flat else (hidden, targets, None)
    objective, loss = head.objective(*batch)
    totals = head.mixer.contexts(hidden)[1].exp().sum(0)  # (B, K)
    variation = ((totals - totals.mean()) ** 2).sum() / (totals.numel() - 1) * (totals.shape[1] - 1)
    torch.testing.assert_close(objective, loss + 28 * 0.5 * variation / totals.mean() ** 2)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_components_of_doc_share_a_mask_where_the_authors_do(shared: bool, flat: bool) -> None:
    head = make_head("doc", components=3, latent_dropout=0.5, shared_latent_mask=shared).train()
    hidden = torch.randn(6, 5, example()[0].shape[-1], dtype=torch.float64)
    if flat:
        contexts = head.mixer.contexts(hidden.flatten(0, 1), torch.arange(5).repeat(6))[0].unflatten(
            0, (6, 5)
        )
    else:
        contexts = head.mixer.contexts(hidden)[0]
    dropped = contexts == 0  # (T, B, K, E)
    assert 0 < dropped.float().mean() < 1
    assert (dropped == dropped[:1]).all(), "one mask for all time steps"
    assert (dropped == dropped[:, :, :1]).all() == shared


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "mixtape", "components": 3}, "components = 3: mixtape divides them by a binary tree"),
        ({"kind": "doc", "components": 3}, r"lower_components = \[\]: doc needs at least one"),
        ({"kind": "doc", "components": 2, "lower_components": (2,)}, "choose from 1 to 1 of"),
        ({"kind": "mos", "gate_size": 3}, r"gate_size belongs to head\.kind = mixtape; head\.kind is mos"),
        ({"kind": "softmax", "intervals": 3}, r"intervals belongs to head\.kind = plif; head\.kind is"),
        (
            {"kind": "moc", "prior_penalty": 0.1},
            r"prior_penalty belongs to head\.kind = mos or moss or doc or mfs",
        ),
    ],
)
def test_a_setting_of_another_kind_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HeadConfig(**settings)


def test_a_model_without_lower_layers_has_no_doc_head() -> None:
    config = HeadConfig(kind="doc", components=3, lower_components=(1, 1))
    with pytest.raises(ConfigError, match="doc reads 2 layers below the last, but the model provides 1"):
        Head(config, H, V, lower_sizes=(4,))
