"""A loss by chunks: equal to the formula at once, in value and gradients, whatever the size of a chunk."""

import pytest
import torch
from torch import Tensor

from lm.heads.chunked_loss import chunked, chunked_loss, log_share

N, D, V = 7, 3, 5


def case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States (N, D), targets (N,), matrix (V, D), weights (N,)."""
    states, matrix = torch.randn(N, D, dtype=torch.float64), torch.randn(V, D, dtype=torch.float64)
    weights = torch.rand(N, dtype=torch.float64)
    return states.requires_grad_(), torch.randint(0, V, (N,)), matrix.requires_grad_(), weights


def nll(states: Tensor, targets: Tensor, matrix: Tensor) -> Tensor:
    scores = (states @ matrix.t()).tanh() * states.sum(1, keepdim=True)
    return -scores.log_softmax(1).gather(1, targets[:, None])[:, 0]


@pytest.mark.parametrize("size", [1, 3, N, 100])
def test_it_is_the_formula_and_its_gradients(size: int) -> None:
    states, targets, matrix, weights = case()
    leaves = [states, matrix, weights.requires_grad_()]

    def of_chunk(states: Tensor, targets: Tensor) -> Tensor:
        assert len(states) <= size
        return nll(states, targets, matrix)

    loss = chunked_loss(of_chunk, [states, targets], [matrix], weights, size)
    wanted = (weights * nll(states, targets, matrix)).sum()
    torch.testing.assert_close(loss, wanted)
    for ours, theirs in zip(
        torch.autograd.grad(3 * loss, leaves), torch.autograd.grad(wanted, leaves), strict=True
    ):
        torch.testing.assert_close(ours, 3 * theirs)
    with torch.no_grad():
        assert not chunked_loss(of_chunk, [states, targets], [matrix], weights, size).requires_grad
    torch.testing.assert_close(chunked(of_chunk, [states, targets], size), nll(states, targets, matrix))


def test_gradients_go_only_where_they_are_wanted() -> None:
    states, targets, matrix, weights = case()
    frozen = states.detach()
    loss = chunked_loss(lambda *chunk: nll(*chunk, matrix), [frozen, targets], [matrix], weights, 2)
    (gradient,) = torch.autograd.grad(loss, [matrix])
    (wanted,) = torch.autograd.grad((weights * nll(frozen, targets, matrix)).sum(), [matrix])
    torch.testing.assert_close(gradient, wanted)
    assert matrix.grad is None


def test_weights_alone_may_have_gradients() -> None:
    states, targets, matrix, weights = case()
    frozen, fixed = states.detach(), matrix.detach()
    loss = chunked_loss(
        lambda *chunk: nll(*chunk, fixed), [frozen, targets], [fixed], weights.requires_grad_(), 2
    )
    (gradient,) = torch.autograd.grad(loss, [weights])
    torch.testing.assert_close(gradient, nll(frozen, targets, fixed))


def test_a_parameter_that_is_computed_is_reached_through() -> None:
    """As an output matrix is that is cast, or tied to something that is learnt."""
    states, targets, matrix, weights = case()
    doubled = 2 * matrix
    loss = chunked_loss(lambda *chunk: nll(*chunk, doubled), [states, targets], [doubled], weights, 3)
    (gradient,) = torch.autograd.grad(loss, [matrix])
    (wanted,) = torch.autograd.grad((weights * nll(states, targets, 2 * matrix)).sum(), [matrix])
    torch.testing.assert_close(gradient, wanted)


def test_the_share_of_a_target_is_its_log_softmax() -> None:
    log_g = torch.randn(4, 2, V, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 4, 2, 2])
    wanted = log_g.log_softmax(2)[torch.arange(4), :, targets]
    torch.testing.assert_close(log_share(log_g, targets), wanted)
    assert torch.autograd.gradcheck(lambda scores: log_share(scores, targets), log_g)


def test_no_tokens_are_no_loss() -> None:
    states, targets, matrix, weights = case()
    loss = chunked_loss(
        lambda *chunk: nll(*chunk, matrix), [states[:0], targets[:0]], [matrix], weights[:0], 3
    )
    loss.backward()
    assert loss.item() == 0
    assert (matrix.grad == 0).all()
    assert chunked(lambda *chunk: nll(*chunk, matrix), [states[:0], targets[:0]], 3).shape == (0,)


def test_gradients_can_be_asked_for_twice() -> None:
    """They are handed out without a copy, so what was done to the first is not in the second."""
    states, targets, matrix, weights = case()
    loss = chunked_loss(lambda *chunk: nll(*chunk, matrix), [states, targets], [matrix], weights, 2)
    first = torch.autograd.grad(loss, [states, matrix], retain_graph=True)
    kept = [gradient.clone() for gradient in first]
    for gradient in first:
        gradient.zero_()
    for gradient, wanted in zip(torch.autograd.grad(2 * loss, [states, matrix]), kept, strict=True):
        assert torch.equal(gradient, 2 * wanted)


def test_gradients_in_bfloat16_are_summed_in_more() -> None:
    """So that they are as exact by many chunks as by one."""
    states, matrix = torch.randn(600, D).bfloat16(), torch.randn(V, D).bfloat16().requires_grad_()
    targets, weights = torch.randint(0, V, (600,)), torch.ones(600)

    def gradient(size: int) -> Tensor:
        loss = chunked_loss(
            lambda *chunk: nll(*chunk, matrix).float(), [states, targets], [matrix], weights, size
        )
        (found,) = torch.autograd.grad(loss, [matrix])
        assert found.dtype == torch.bfloat16
        return found.double()

    by_one, by_many = gradient(600), gradient(2)
    assert float((by_many - by_one).norm() / by_one.norm()) < 0.01
