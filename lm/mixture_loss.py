"""The loss of a mixture over the vocabulary, in memory that does not grow with the number of tokens.

    −log P(y) = −logsumexp_k [ log π_k + log g(z_k,y) − logsumexp_v log g(z_k,v) ],   z_k = W c_k + b

Written out, N tokens, K components and V words need several (N·K, V) tensors. Here the tokens go through
in chunks, and each chunk computes its gradients at once, while its logits are still there: three matrix
products a chunk, the arithmetic minimum, and nothing is recomputed in the backward pass.

With r_k = π_k p_k(y) / P(y), the posterior of component k, the gradient of the loss at the logits is
r_k · g'(z)/g(z) · (p_k(v) − [v = y]). The buffer keeps exp(log g − max) as it is; the factor r_k / Σ_v
scales the small operands of the products instead, and the [v = y] part is a gather and a scatter of rows.

N tokens · K components · E context size · V words · R = n·K rows of a chunk.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.links import Link

SCRATCH_BYTES = (
    32 * 2**20
)  # of one (R, V) float32 buffer: large enough for full-speed products, small enough for cache
MIN_ROWS, MAX_ROWS = 128, 4096


@dataclass(frozen=True)
class LossOptions:
    """The static part of a mixture loss: link function, product precision, rows a chunk (0: by size)."""

    link: Link
    bf16_products: bool = False
    rows: int = 0

    def tokens_per_chunk(self, components: int, vocab: int) -> int:
        """How many tokens go through at once."""
        rows = self.rows or min(MAX_ROWS, max(MIN_ROWS, SCRATCH_BYTES // (4 * vocab)))
        return max(1, rows // components)


class Output(NamedTuple):
    """What turns a context into log g: logits W c + b, and the scalar shift of sigsoftmax."""

    weight: Tensor  # (V, E)
    bias: Tensor | None  # (V,)
    shift: Tensor | None  # ()

    def logits(self, contexts: Tensor, temperature: float) -> Tensor:
        """(W c + b) / temperature, (..., V), for contexts (..., E)."""
        logits = F.linear(contexts, self.weight, self.bias)
        return logits if temperature == 1 else logits.div_(temperature)


def mixture_loss(
    contexts: Tensor,
    log_prior: Tensor | None,
    output: Output,
    targets: Tensor,
    token_weights: Tensor | None,
    options: LossOptions,
) -> Tensor:
    """Σ_n w_n · −log P(y_n) in nats, a scalar; its gradients are computed in this forward pass.

    Args:
        contexts: (N, K, E).
        log_prior: log π, (N, K), normalised; None where K = 1.
        output: output matrix, bias and shift.
        targets: (N,) word ids.  token_weights: (N,) or None for ones.
    """
    if log_prior is None:
        log_prior = contexts.new_zeros(contexts.shape[:2])
    if token_weights is None:
        token_weights = contexts.new_ones(contexts.shape[0])
    loss: Tensor = _MixtureLoss.apply(  # type: ignore[no-untyped-call]
        contexts, log_prior, *output, targets, token_weights, options
    )
    return loss


def mixture_nll(
    contexts: Tensor,
    log_prior: Tensor | None,
    output: Output,
    targets: Tensor,
    options: LossOptions,
    component_temperature: float = 1.0,
) -> Tensor:
    """−log P(y_n) of every token, (N,) nats. Memory is bounded unless autograd records the products.

    ``component_temperature`` divides the logits of every component.
    """
    size = options.tokens_per_chunk(contexts.shape[1], output.weight.shape[0])
    pieces = []
    for start in range(0, max(1, contexts.shape[0]), size):
        chunk, wanted = contexts[start : start + size], targets[start : start + size]
        logits = output.logits(chunk, component_temperature)  # (n, K, V)
        scores = options.link.log(logits, output.shift)
        picked = scores.gather(-1, wanted[:, None, None].expand(-1, scores.shape[1], 1)).squeeze(-1)
        joint = picked - scores.logsumexp(-1)  # (n, K)
        if log_prior is not None:
            joint = joint + log_prior[start : start + size]
        pieces.append(-joint.logsumexp(-1))
    return torch.cat(pieces)


class _Pass:
    """One pass over the tokens: gradient accumulators, operands, and buffers that every chunk uses again.

    Fresh memory costs more to touch than the products that fill it, so no chunk allocates (R, V) anew.
    """

    def __init__(self, contexts: Tensor, weight: Tensor, bias: Tensor | None, options: LossOptions) -> None:
        tokens, components, _ = contexts.shape
        rows = min(tokens, options.tokens_per_chunk(components, weight.shape[0])) * components
        self.weight, self.bias, self.link = weight, bias, options.link
        self.dtype = torch.bfloat16 if options.bf16_products else contexts.dtype
        self.operand = weight.to(self.dtype)  # (V, E)
        self.buffers = contexts.new_empty(self.link.buffers, rows, weight.shape[0])
        self.products = (
            contexts.new_empty((rows, weight.shape[0]), dtype=self.dtype) if options.bf16_products else None
        )
        self.context_grad = torch.empty_like(contexts)  # (N, K, E)
        self.prior_grad = torch.empty_like(contexts[..., 0])  # (N, K)
        self.weight_grad = torch.zeros_like(weight)
        self.bias_grad = torch.zeros_like(weight[:, 0])
        self.shift_grad = weight.new_zeros(())
        self.token_nll = torch.empty_like(contexts[:, 0, 0])

    def logits(self, rows: Tensor) -> Tensor:
        """W c + b for rows (R, E), in the first buffer."""
        out = self.buffers[0, : rows.shape[0]]
        if self.products is not None:
            out.copy_(torch.mm(rows.to(self.dtype), self.operand.t(), out=self.products[: rows.shape[0]]))
        else:
            torch.mm(rows, self.operand.t(), out=out)
        return out if self.bias is None else out.add_(self.bias)

    def low(self, share: Tensor) -> Tensor:
        """``share`` in the precision of the products."""
        return share if self.products is None else self.products[: share.shape[0]].copy_(share)


class _MixtureLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        contexts: Tensor,
        log_prior: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        shift: Tensor | None,
        targets: Tensor,
        token_weights: Tensor,
        options: LossOptions,
    ) -> Tensor:
        run = _Pass(contexts, weight, bias, options)
        size = options.tokens_per_chunk(contexts.shape[1], weight.shape[0])
        one_hot = torch.zeros_like(weight)  # the [v = y] part of the weight gradient
        for start in range(0, contexts.shape[0], size):
            part = slice(start, start + size)
            _chunk(
                run, part, contexts[part], log_prior[part], shift, targets[part], token_weights[part], one_hot
            )
        run.weight_grad.sub_(one_hot)
        ctx.kept = bias is not None, shift is not None  # type: ignore[attr-defined]
        ctx.save_for_backward(
            run.context_grad, run.prior_grad, run.weight_grad, run.bias_grad, run.shift_grad, run.token_nll
        )
        return (token_weights * run.token_nll).sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        contexts, log_prior, weight, bias, shift, token_nll = (saved * grad for saved in ctx.saved_tensors)
        has_bias, has_shift = ctx.kept
        return (
            contexts, log_prior, weight, bias if has_bias else None, shift if has_shift else None,
            None, token_nll, None,
        )  # fmt: skip


def _chunk(
    run: _Pass,
    part: slice,
    contexts: Tensor,
    log_prior: Tensor,
    shift: Tensor | None,
    targets: Tensor,
    token_weights: Tensor,
    one_hot: Tensor,
) -> None:
    """One chunk of n tokens: its loss, and its share of every gradient."""
    n, components, size = contexts.shape
    rows = contexts.reshape(n * components, size)  # (R, E)
    words = targets.repeat_interleave(components)  # (R,)
    logits, spares = run.logits(rows), run.buffers[1:, : rows.shape[0]]  # (R, V)
    at_word = logits.gather(1, words[:, None])  # (R, 1)
    score_at_word = run.link.log(at_word, shift)
    scores = run.link.log_(logits, shift, spares)
    peak = scores.amax(1, keepdim=True)
    share = scores.sub_(peak).exp_()  # exp(log g - max), not yet normalised
    total = share.sum(1, keepdim=True)  # (R, 1)

    joint = log_prior + (score_at_word - peak - total.log()).view(n, components)  # log π_k p_k(y)
    run.token_nll[part] = nll = -joint.logsumexp(1)  # (n,)
    posterior = (joint + nll[:, None]).exp() * token_weights[:, None]  # w·r_k, (n, K)
    run.prior_grad[part] = -posterior

    at_target = posterior.reshape(-1, 1)  # (R, 1)
    factor = at_target / total
    run.link.times_slope_(share, spares)
    at_target = at_target * run.link.slope(at_word, shift)
    products = run.low(share)
    towards = torch.mm(products, run.operand).to(rows.dtype).mul_(factor)  # (R, E)
    run.context_grad[part] = towards.addcmul_(run.weight[words], at_target, value=-1).view(
        n, components, size
    )
    run.weight_grad += torch.mm(products.t(), (rows * factor).to(run.dtype))
    one_hot.index_add_(0, words, rows * at_target)
    at_logits = torch.mv(share.t(), factor[:, 0]).index_add_(0, words, at_target[:, 0], alpha=-1)  # (V,)
    run.bias_grad += at_logits
    # b is sigsoftmax's: d log g / db = slope - 1, and Σ_v d loss / d log g = 0 in every row, so b's gradient
    # is the plain sum
    run.shift_grad += at_logits.sum()
