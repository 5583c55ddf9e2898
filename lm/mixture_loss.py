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

from lm.kernels.rows import rows_for
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
    """One pass over the tokens: gradient accumulators, operands, and a buffer that every chunk uses again.

    Fresh memory costs more to touch than the products that fill it, so no chunk allocates (R, V) anew.
    """

    def __init__(self, contexts: Tensor, output: Output, options: LossOptions) -> None:
        tokens, components, _ = contexts.shape
        weight = output.weight
        rows = min(tokens, options.tokens_per_chunk(components, weight.shape[0])) * components
        self.output, self.link = output, options.link
        self.dtype = torch.bfloat16 if options.bf16_products else contexts.dtype
        self.operand = weight.to(self.dtype)  # (V, E)
        self.buffer = contexts.new_empty((rows, weight.shape[0]), dtype=self.dtype)
        self.rows = rows_for(options.link, self.buffer)
        self.context_grad = torch.empty_like(contexts)  # (N, K, E)
        self.prior_grad = torch.empty_like(contexts[..., 0])  # (N, K)
        self.weight_grad = torch.zeros_like(weight)
        self.bias_grad = torch.zeros_like(weight[:, 0])
        self.shift_grad = weight.new_zeros(())
        self.token_nll = torch.empty_like(contexts[:, 0, 0])

    def logits(self, rows: Tensor) -> Tensor:
        """W c, without the bias, for rows (R, E), in the buffer."""
        return torch.mm(rows.to(self.dtype), self.operand.t(), out=self.buffer[: rows.shape[0]])

    def at_words(self, logits: Tensor, words: Tensor) -> Tensor:
        """The logit of word words[r] in row r, bias included, (R, 1)."""
        at_word = logits.gather(1, words[:, None]).to(self.output.weight.dtype)
        return at_word if self.output.bias is None else at_word + self.output.bias[words, None]

    def add_outer(self, shares: Tensor, rows: Tensor) -> None:
        """Adds sharesᵀ · rows to the gradient of the output matrix."""
        if shares.dtype == self.weight_grad.dtype:
            self.weight_grad.addmm_(shares.t(), rows)
        else:
            self.weight_grad += torch.mm(shares.t(), rows.to(shares.dtype))


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
        run = _Pass(contexts, Output(weight, bias, shift), options)
        size = options.tokens_per_chunk(contexts.shape[1], weight.shape[0])
        for start in range(0, contexts.shape[0], size):
            part = slice(start, start + size)
            _chunk(run, part, contexts[part], log_prior[part], targets[part], token_weights[part])
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
    run: _Pass, part: slice, contexts: Tensor, log_prior: Tensor, targets: Tensor, token_weights: Tensor
) -> None:
    """One chunk of n tokens: its loss, and its share of every gradient."""
    n, components, size = contexts.shape
    shift = run.output.shift
    rows = contexts.reshape(n * components, size)  # (R, E)
    words = targets.repeat_interleave(components)  # (R,)
    logits = run.logits(rows)  # (R, V)
    at_word = run.at_words(logits, words)  # (R, 1)
    peak, total = run.rows.shares_(logits, run.output.bias, shift)  # logits are shares from here on
    shares = logits

    joint = log_prior + (run.link.log(at_word, shift) - peak - total.log()).view(n, components)
    run.token_nll[part] = nll = -joint.logsumexp(1)  # (n,)
    posterior = (joint + nll[:, None]).exp() * token_weights[:, None]  # w·r_k, (n, K)
    run.prior_grad[part] = -posterior

    at_target = posterior.reshape(-1, 1)  # (R, 1)
    factor = at_target / total
    at_target = at_target * run.link.slope(at_word, shift)
    towards = torch.mm(shares, run.operand).to(rows.dtype).mul_(factor)  # (R, E)
    run.context_grad[part] = towards.addcmul_(run.output.weight[words], at_target, value=-1).view(
        n, components, size
    )
    run.add_outer(shares, rows * factor)
    run.weight_grad.index_add_(0, words, rows * at_target, alpha=-1)
    at_logits = run.rows.column_sums(shares, factor).index_add_(0, words, at_target[:, 0], alpha=-1)  # (V,)
    run.bias_grad += at_logits
    # b is sigsoftmax's: d log g / db = slope - 1, and Σ_v d loss / d log g = 0 in every row, so b's gradient
    # is the plain sum
    run.shift_grad += at_logits.sum()
