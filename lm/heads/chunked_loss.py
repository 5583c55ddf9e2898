"""A loss of any formula, in memory that does not grow with the number of tokens.

Heads whose logits take more than one product, such as a temperature for every word, write down their
formula for a few tokens and leave the rest to this: the tokens go through in chunks, and each chunk computes
its gradients at once by automatic differentiation and is then forgotten. A chunk holds whatever its formula
keeps, which :mod:`lm.heads.mixture_loss` need not; where the two can do the same, that one is faster.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lm.heads.precision import precise

Formula = Callable[..., Tensor]


def chunked_loss(
    nll: Formula, tokens: Sequence[Tensor], parameters: Sequence[Tensor], weights: Tensor, size: int
) -> Tensor:
    """Σ_n w_n · nll_n, a scalar; its gradients are computed in this forward pass.

    Args:
        nll: of tensors like ``tokens`` with n rows, the losses (n,). It may read ``parameters`` and nothing
            else that a gradient is wanted of.
        tokens: tensors with one row a token; those that require gradients receive them.
        parameters: tensors that all tokens share and the formula uses; likewise.
        weights: (N,).
        size: tokens of a chunk.
    """
    wanted = any(tensor.requires_grad for tensor in (*tokens, *parameters))
    if not (wanted and torch.is_grad_enabled()):
        return (weights * chunked(nll, tokens, size)).sum()
    loss: Tensor = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        nll, size, len(tokens), weights, *tokens, *parameters
    )
    return loss


@torch.no_grad()
def chunked(formula: Formula, tokens: Sequence[Tensor], size: int) -> Tensor:
    """The formula's result for all tokens, (N, ...), computed for ``size`` of them at a time."""
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

    Its gradient takes one tensor of that size, where the formula's would take four.
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


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, nll: Formula, size: int, count: int, weights: Tensor, *tensors: Tensor
    ) -> Tensor:
        ctx.save_for_backward(weights, *tensors)
        ctx.formula = nll, size, count, ctx.needs_input_grad[4:]
        ctx.gradients = token_nll, _ = _gradients(weights, tensors, *ctx.formula)
        return (weights * token_nll).sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        # Handed out as they are, for a copy would be as large again; who asks twice has them computed twice.
        weights, *tensors = ctx.saved_tensors
        token_nll, gradients = ctx.gradients or _gradients(weights, tensors, *ctx.formula)
        ctx.gradients = None
        scaled = (None if gradient is None else gradient.mul_(grad) for gradient in gradients)
        return (None, None, None, token_nll.mul_(grad), *scaled)


def _gradients(
    weights: Tensor, tensors: Sequence[Tensor], nll: Formula, size: int, count: int, wanted: Sequence[bool]
) -> tuple[Tensor, list[Tensor | None]]:
    """The losses (N,), and the gradients of Σ w · losses at the ``wanted`` of the tensors, else None."""
    gradients = [
        torch.zeros_like(precise(tensor)) if needed else None
        for tensor, needed in zip(tensors, wanted, strict=True)
    ]  # sums of many chunks
    token_nll = torch.empty_like(weights)
    for start in range(0, weights.shape[0], size):
        part = slice(start, start + size)
        inputs = [
            tensor[part].detach().requires_grad_(needed)
            for tensor, needed in zip(tensors[:count], wanted, strict=False)
        ]
        leaves = [*inputs, *tensors[count:]]
        with torch.enable_grad():
            losses = nll(*inputs)
        found = iter(
            torch.autograd.grad(
                losses,
                [leaf for leaf, needed in zip(leaves, wanted, strict=True) if needed],
                weights[part],
                materialize_grads=True,  # a formula need not read all that is known of a token
            )
        )
        token_nll[part] = losses.detach()
        for place, gradient in enumerate(gradients):
            if gradient is None:
                continue
            if place < count:
                gradient[part] = next(found)
            else:
                gradient += next(found)
    cast = zip(gradients, tensors, strict=True)
    return token_nll, [None if gradient is None else gradient.to(tensor.dtype) for gradient, tensor in cast]
