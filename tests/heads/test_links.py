"""Links: in place and out of place, slopes, and logits without a probability."""

import math

import pytest
import torch

from lm.heads.links import EXP, RELU, SIGMOID, SIGSOFTMAX, Link
from tests.support.plain_heads import KINDS, H, N, V, example, make_head


@pytest.mark.parametrize("link", [EXP, SIGSOFTMAX, SIGMOID, RELU], ids=lambda link: type(link).__name__)
@pytest.mark.parametrize("shift", [None, 1.5])
def test_links_in_place_and_out_of_place_are_one_function_and_its_derivative(
    link: Link, shift: float | None
) -> None:
    """From −300 to 300, and where a slope of relu begins, in float32; and 1 and 30 below."""
    special = torch.tensor([0.0, 1e-30, -1e-30, 1e-9, -1e-9, 1e-7])
    logits = torch.cat([torch.linspace(-300, 300, 501), torch.randn(100), special])
    logits = logits[:, None] - torch.tensor([0.0, 1.0, 30.0])
    moved = None if shift is None else torch.tensor(shift)
    leaf = logits.clone().requires_grad_()
    wanted = link.log(leaf, moved)
    (slope,) = torch.autograd.grad(wanted.sum(), leaf)
    torch.testing.assert_close(link.slope(logits, moved), slope)
    buffers = torch.full((link.buffers, *logits.shape), math.nan)
    buffers[0] = logits
    top = link.shares_(buffers[0], logits.amax(1, keepdim=True), moved, buffers[1:])
    torch.testing.assert_close(buffers[0], (wanted.detach() - top).exp(), rtol=5e-5, atol=1e-30)
    got = link.times_slope_(buffers[0], buffers[1:])
    torch.testing.assert_close(got, (wanted.detach() - top).exp() * slope, rtol=1e-4, atol=1e-30)
    assert got.isfinite().all()
    assert wanted.isfinite().all()


@pytest.mark.parametrize("link", [EXP, SIGSOFTMAX, SIGMOID, RELU], ids=lambda link: type(link).__name__)
def test_logits_of_shares_have_them(link: Link) -> None:
    shares = torch.logspace(-9, -0.01, 100, dtype=torch.float64)
    if link is RELU:
        shares = shares[shares > 1e-7]  # less is within its floor
    torch.testing.assert_close(link.log(link.inverse(shares)).exp(), shares, rtol=1e-12, atol=0)


def test_slope_of_relu_is_as_published() -> None:
    slopes = RELU.slope(torch.tensor([-2.0, 0.0, 1e-20, 1e-8, 4.0]))
    torch.testing.assert_close(slopes, torch.tensor([0.0, 0.0, 1e8, 5e7, 0.25]))


def test_relu_without_a_positive_logit_is_uniform_and_learns_nothing() -> None:
    head = make_head("relu").float()
    torch.nn.init.constant_(head.bias, -100)
    hidden = torch.randn(N, H, requires_grad=True)
    targets = torch.randint(0, V, (N,))
    loss = head.loss(hidden, targets)
    loss.backward()
    assert loss.item() == pytest.approx(N * math.log(V), rel=1e-6)
    assert all((parameter.grad == 0).all() for parameter in (hidden, *head.parameters()))


def test_relu_just_above_zero_has_a_huge_gradient_that_is_finite() -> None:
    head = make_head("relu", size=H).float()
    torch.nn.init.zeros_(head.weight)
    head.bias.data.fill_(1.0)[0] = 1e-20
    loss = head.loss(torch.randn(1, H), torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(V - 1) - math.log(1e-8), rel=1e-5)
    assert head.bias.grad[0].item() == pytest.approx(-1e8, rel=1e-5)
    torch.testing.assert_close(head.bias.grad[1:], torch.full((V - 1,), 1 / (V - 1)))


def test_a_head_whose_logits_are_not_numbers_says_so() -> None:
    for kind in KINDS:
        head = make_head(kind)
        hidden, targets, _ = example()
        head.bias.data[targets[0]] = math.nan
        loss = head.loss(hidden, targets)
        loss.backward()
        assert loss.isnan()
        assert hidden.grad.isnan().any()
