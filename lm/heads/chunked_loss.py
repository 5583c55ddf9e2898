"""Chunked loss of any formula, in memory that does not grow with the number of tokens.

Some heads need more than one product for their logits, for example with a temperature for every word. They
provide their formula for a few tokens. The loss processes the tokens in chunks, and computes the gradients of
a chunk by automatic differentiation in the forward pass. A chunk holds all tensors that its formula saves for
the backward pass. :mod:`lm.heads.mixture_loss` saves fewer and is faster for the formulas that it supports.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lm.heads.precision import precise

Formula = Callable[..., Tensor]


def chunked_loss(
    nll: Formula, tokens: Sequence[Tensor], parameters: Sequence[Tensor], weights: Tensor, size: int
) -> Tensor:
    """Σ_n w_n · nll_n, a scalar or (C,); its gradients are computed in this forward pass.

    Args:
        nll: function from n rows of each of ``tokens`` to losses (n,), or (n, C), of which only the first
            column has gradients. They reach only ``tokens`` and ``parameters``.
        tokens: tensors with one row a token, which receive gradients if they require them.
        parameters: tensors that the formula uses for all tokens, which receive gradients likewise.
        weights: (N,).
        size: tokens of a chunk.
    """
    wanted = any(tensor.requires_grad for tensor in (*tokens, *parameters))
    if not (wanted and torch.is_grad_enabled()):
        return _weighted(chunked(nll, tokens, size), weights)
    loss: Tensor = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        nll, size, len(tokens), weights, *tokens, *parameters
    )
    return loss


@torch.no_grad()
def chunked(formula: Formula, tokens: Sequence[Tensor], size: int) -> Tensor:
    """Result of a formula for all tokens, (N, ...), computed for ``size`` tokens at a time."""
    count = tokens[0].shape[0]
    first = formula(*(tensor[:size] for tensor in tokens))
    if count <= size:
        return first
    result = first.new_empty(count, *first.shape[1:])
    result[:size] = first
    for start in range(size, count, size):
        part = slice(start, start + size)
        result[part] = formula(*(tensor[part] for tensor in tokens))
    return result


def log_share(log_g: Tensor, targets: Tensor) -> Tensor:
    """log g − log Σ_v g at the targets (n,), (n, K), for log g (n, K, V).

    The gradient takes one tensor of that size; that of the plain formula would take four.
    """
    share: Tensor = _LogShare.apply(log_g, targets)  # type: ignore[no-untyped-call]
    return share


class _LogShare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, log_g: Tensor, targets: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        index = targets[:, None, None].expand(-1, log_g.shape[1], 1)
        total = log_g.logsumexp(2, keepdim=True)
        ctx.save_for_backward(log_g, total, index)
        return (log_g.gather(2, index) - total)[..., 0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        log_g, total, index = ctx.saved_tensors
        grad = grad[..., None]
        shares = (log_g - total).exp_().mul_(-grad)
        # scatter_, and not scatter_add_, is reproducible on CUDA
        return shares.scatter_(2, index, shares.gather(2, index) + grad), None


def mixed_log_probs(log_g: Tensor, log_prior: Tensor) -> Tensor:
    """log Σ_k π_k p_k(v), (n, V), for log g (n, K, V) and log π (n, K), normalised.

    With gradients, it keeps one tensor of the size of log g. The plain formula would keep three.
    """
    if log_g.shape[1] == 1:  # log π is 0
        return log_g.log_softmax(2)[:, 0]
    mixed: Tensor = _MixedLogProbs.apply(log_g, log_prior)  # type: ignore[no-untyped-call]
    return mixed


class _MixedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, log_g: Tensor, log_prior: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        log_p = log_g.log_softmax(2)
        mixed = (log_p + log_prior[..., None]).logsumexp(1)
        ctx.save_for_backward(log_p, log_prior, mixed)
        return mixed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        log_p, log_prior, mixed = ctx.saved_tensors
        shares = (log_p - mixed[:, None]).add_(log_prior[..., None]).exp_().mul_(grad[:, None])
        totals = shares.sum(2)
        return shares.addcmul_(log_p.exp(), totals[..., None], value=-1), totals


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, nll: Formula, size: int, count: int, weights: Tensor, *tensors: Tensor
    ) -> Tensor:
        ctx.save_for_backward(weights, *tensors)
        ctx.formula = nll, size, count, ctx.needs_input_grad[4:]
        ctx.gradients = token_nll, _ = _gradients(weights, tensors, *ctx.formula)
        return _weighted(token_nll, weights)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        # Returned without a copy, which would double the memory. A second backward pass computes them again.
        weights, *tensors = ctx.saved_tensors
        token_nll, gradients = ctx.gradients or _gradients(weights, tensors, *ctx.formula)
        ctx.gradients = None
        grad = grad.view(-1)[0]
        scaled = (None if gradient is None else gradient.mul_(grad) for gradient in gradients)
        return (None, None, None, _first(token_nll).mul(grad), *scaled)


def _first(losses: Tensor) -> Tensor:
    """The losses with gradients, (n,), of (n,) or (n, C)."""
    return losses if losses.dim() == 1 else losses[:, 0]


def _weighted(losses: Tensor, weights: Tensor) -> Tensor:
    """Σ_n w_n · losses_n, a scalar for losses (N,), or (C,) for (N, C)."""
    return (weights * losses.t()).sum(-1)


def _gradients(
    weights: Tensor, tensors: Sequence[Tensor], nll: Formula, size: int, count: int, wanted: Sequence[bool]
) -> tuple[Tensor, list[Tensor | None]]:
    """Losses of all tokens, and for each tensor the gradient of Σ w · losses, or None if not ``wanted``."""
    places = [place for place, needed in enumerate(wanted) if needed]
    sums = {place: torch.zeros_like(precise(tensors[place])) for place in places}  # of many chunks
    token_losses = list[Tensor]()
    for start in range(0, max(1, weights.shape[0]), size):
        part = slice(start, start + size)
        inputs = [
            tensor[part].detach().requires_grad_(needed)
            for tensor, needed in zip(tensors[:count], wanted[:count], strict=True)
        ]
        leaves = [*inputs, *tensors[count:]]
        with torch.enable_grad():
            losses = nll(*inputs)
            first = _first(losses)
        gradients = torch.autograd.grad(
            first,
            [leaves[place] for place in places],
            weights[part],
            materialize_grads=True,  # a formula may ignore some of its inputs
        )
        token_losses.append(losses.detach())
        for place, gradient in zip(places, gradients, strict=True):
            if place < count:
                sums[place][part] = gradient
            else:
                sums[place] += gradient
    return torch.cat(token_losses), [
        sums[place].to(tensor.dtype) if place in sums else None for place, tensor in enumerate(tensors)
    ]
