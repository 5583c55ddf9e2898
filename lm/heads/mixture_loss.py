"""Mixture loss over the vocabulary, in memory that does not grow with the number of tokens.

    −log P(y) = −logsumexp_k [ log π_k + log g(z_k,y) − logsumexp_v log g(z_k,v) ],   z_k = W c_k + b

A plain implementation needs several (N·K, V) tensors. This one processes the tokens in chunks, and computes
the gradients of a chunk in the forward pass, from the same logits. A chunk takes three matrix products, the
arithmetic minimum, and the backward pass recomputes nothing.

Let r_k = π_k p_k(y) / P(y) be the posterior of component k, and slope = g'(z)/g(z), 1 for the exponential.
The gradient of the loss at the logits is r_k · slope(v) · (p_k(v) − [v = y]). The buffer holds only
exp(log g − max) · slope, and 0 at v = y. The factor r_k / Σ_v exp(log g − max) instead scales the small
operands of the products.

At v = y the gradient is −r_k · slope(y) · (1 − p_k(y)). This one number a row takes a gather and a scatter of
rows instead of a product, so low-precision products do not round it. 1 − p_k(y) is computed as the share of
the other words, which avoids cancellation for p_k(y) near 1.

N tokens · K components · E context size · V words · R = n·K rows of a chunk.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from lm.heads import kernel_choice, pages
from lm.heads.loss_options import LossOptions, Output, logits_of, rounded
from lm.heads.rows import Rows

GATHERED = 32  # rows that are moved at a time
PACKED = 640  # words a product in float32 on a CPU, where MKL copies its part of the matrix
ADDED = 2048  # words of the output matrix whose bfloat16 gradient fits the cache until it is added


def one_pass_loss(
    contexts: Tensor,
    log_prior: Tensor,
    output: Output,
    targets: Tensor,
    token_weights: Tensor | None,
    options: LossOptions,
) -> Tensor:
    """Σ_n w_n · −log P(y_n) in nats, a scalar; its gradients are computed in this forward pass.

    Args:
        contexts: (N, K, E).
        log_prior: log π, (N, K), normalised.
        output: output matrix, bias and shift.
        targets: (N,) ids of possible words, also for tokens of weight 0.
        token_weights: (N,) or None for ones.
    """
    if token_weights is None:
        token_weights = contexts.new_ones(contexts.shape[0])
    wanted = any(tensor.requires_grad for tensor in (contexts, log_prior, *output) if tensor is not None)
    if not (wanted and torch.is_grad_enabled()):
        return (token_weights * one_pass_nll(contexts, log_prior, output, targets, options)).sum()
    loss: Tensor = _MixtureLoss.apply(  # type: ignore[no-untyped-call]
        contexts, log_prior, *output, targets, token_weights, options
    )
    return loss


@torch.no_grad()
def one_pass_nll(
    contexts: Tensor, log_prior: Tensor, output: Output, targets: Tensor, options: LossOptions
) -> Tensor:
    """−log P(y_n) of every token, (N,) nats, by one exact product and without gradients."""
    products = _Products(contexts, output, replace(options, bf16_products=False))
    nll = torch.empty_like(log_prior[:, 0])
    for part in products.parts():
        logits = products.logits(contexts[part])
        words = targets[part].repeat_interleave(contexts.shape[1])[:, None]  # (R, 1)
        at_word = logits.gather(1, words)
        if output.bias is not None:
            at_word += output.bias[words]
        picked = products.link.log(at_word, output.shift) - products.log_totals(logits)
        joint = log_prior[part] + picked.view_as(log_prior[part])
        nll[part] = -joint.logsumexp(1)
    return nll


@torch.no_grad()
def one_pass_log_probs(
    contexts: Tensor, log_prior: Tensor, output: Output, options: LossOptions, operand: Tensor | None = None
) -> Tensor:
    """log P(v) of every word, (N, V), normalised, by one product and without gradients.

    Products are in bfloat16 if ``operand``, the output matrix from :func:`rounded`, is given.
    """
    options = options if operand is None else replace(options, bf16_products=True)
    products = _Products(contexts, output, options, operand)
    shape = contexts.shape[0], output.weight.shape[0]
    log_probs = contexts.new_empty(shape, dtype=products.rows.precision)
    for part in products.parts():
        logits = products.logits(contexts[part])
        products.rows.log_probs(logits, output.bias, output.shift, log_prior[part], out=log_probs[part])
    return log_probs


class _Products:
    """Forward half: the logits of a chunk, in a buffer that all chunks share.

    The first access to new memory costs more than the product that fills it, so no chunk allocates (R, V).
    """

    def __init__(
        self,
        contexts: Tensor,
        output: Output,
        options: LossOptions,
        operand: Tensor | None = None,
        allocate: Callable[..., Tensor] = Tensor.new_empty,
    ) -> None:
        self.tokens, components, _ = contexts.shape
        vocab = output.weight.shape[0]
        self.size = options.tokens_per_chunk(components, vocab, contexts.device.type)
        self.output, self.link = output, options.link
        low = options.bf16_products and (operand is not None or contexts.dtype != torch.float64)
        self.dtype = torch.bfloat16 if low else contexts.dtype
        if operand is None:
            operand = rounded(output.weight) if low else output.weight.t().to(self.dtype)
        self.operand = operand  # (E, V)
        rows = min(self.tokens, self.size) * components
        self.buffer = allocate(contexts, (rows, vocab), dtype=self.dtype)
        self.rows = Rows(options.link, self.buffer)

    def parts(self) -> Iterator[slice]:
        """Slices of the chunks."""
        return (slice(start, start + self.size) for start in range(0, self.tokens, self.size))

    def logits(self, contexts: Tensor) -> Tensor:
        """Logits W c without the bias, (R, V), for contexts (n, K, E)."""
        rows = contexts.flatten(0, 1).to(self.dtype)  # (R, E)
        logits = self.buffer[: rows.shape[0]]
        if self.dtype == torch.bfloat16 or logits.is_cuda:
            return torch.mm(rows, self.operand, out=logits)
        for found, words in zip(logits.split(PACKED, 1), self.operand.split(PACKED, 1), strict=True):
            torch.mm(rows, words, out=found)
        return logits

    def log_totals(self, logits: Tensor) -> Tensor:
        """log Σ_v g, (R, 1)."""
        return self.rows.log_totals(logits, self.output.bias, self.output.shift)


class _Gradients(_Products):
    """Forward and backward half: gradients of a chunk from its shares in the buffer."""

    def __init__(self, contexts: Tensor, output: Output, options: LossOptions) -> None:
        super().__init__(contexts, output, options, allocate=pages.zeros)
        self.skip_below = options.skip_below
        weight = output.weight
        self.of_contexts = pages.zeros(contexts, contexts.shape)  # (N, K, E)
        self.of_prior = torch.empty_like(contexts[..., 0])  # (N, K)
        self.of_weight = pages.zeros(weight, weight.shape)
        self.of_bias = torch.zeros_like(weight[:, 0])
        self.of_shift = weight.new_zeros(())
        self.token_nll = torch.empty_like(contexts[:, 0, 0])

    def add(
        self, part: slice, contexts: Tensor, log_prior: Tensor, targets: Tensor, token_weights: Tensor
    ) -> None:
        """Add one chunk of n tokens: its losses, and its part of every gradient."""
        n, components, size = contexts.shape
        shift = self.output.shift
        words = targets.repeat_interleave(components)  # (R,)
        at_word = logits_of(targets, contexts, self.output).view(-1, 1)  # (R, 1)
        shares = logits = self.logits(contexts)  # the same buffer, overwritten below
        peak, total = self.rows.shares_(logits, words, self.output.bias, shift)
        log_others = peak + total.log()  # log Σ_v g without the target's, (R, 1)
        picked = self.link.log(at_word, shift)
        log_total = torch.logaddexp(log_others, picked)
        joint = log_prior + (picked - log_total).view(n, components)  # log π_k p_k(y), (n, K)
        self.token_nll[part] = nll = -joint.logsumexp(1)  # (n,)
        posterior = (joint + nll[:, None]).exp() * token_weights[:, None]  # w·r_k, (n, K)
        self.of_prior[part] = -posterior

        of_rows = posterior.reshape(-1, 1)  # (R, 1)
        factor = of_rows * (peak - log_total).exp()
        at_target = of_rows * (log_others - log_total).exp() * self.link.slope(at_word, shift)
        at_logits = self.rows.column_sums(shares, factor)  # (V,)
        at_logits.index_add_(0, words, at_target[:, 0], alpha=-1)
        self.of_bias += at_logits
        # the shift b of sigsoftmax: d log g / db = slope - 1, and Σ_v d loss / d log g = 0 in every row, so
        # its gradient is the plain sum
        self.of_shift += at_logits.sum()

        rows, of_contexts = contexts.reshape(-1, size), self.of_contexts[part].view(-1, size)
        if self.skip_below:
            kept = (
                (posterior.abs() > self.skip_below * token_weights.abs()[:, None]).flatten().nonzero()[:, 0]
            )
            shares = gather_rows_(shares, kept)
            rows, factor, at_target, words = rows[kept], factor[kept], at_target[kept], words[kept]
            of_contexts.zero_()[kept] = self.at_contexts(
                shares, factor, at_target, words, out=torch.empty_like(rows)
            )
        else:
            self.at_contexts(shares, factor, at_target, words, out=of_contexts)
        self.add_outer(shares, rows * factor)
        self.of_weight.index_add_(0, words, rows * at_target, alpha=-1)

    def at_contexts(
        self, shares: Tensor, factor: Tensor, at_target: Tensor, words: Tensor, out: Tensor
    ) -> Tensor:
        """Compute the gradient of the contexts, (R, E), in ``out``."""
        if shares.dtype == out.dtype:
            torch.mm(shares, self.operand.t(), out=out)
        else:
            out.copy_(torch.mm(shares, self.operand.t()))
        return out.mul_(factor).addcmul_(self.output.weight[words], at_target, value=-1)

    def add_outer(self, shares: Tensor, rows: Tensor) -> None:
        """Add sharesᵀ · rows to the gradient of the output matrix."""
        if shares.dtype == self.of_weight.dtype:
            self.of_weight.addmm_(shares.t(), rows)
            return
        rows = rows.to(shares.dtype)
        for weight, columns in zip(self.of_weight.split(ADDED), shares.split(ADDED, 1), strict=True):
            weight += torch.mm(columns.t(), rows)


def gather_rows_(matrix: Tensor, kept: Tensor) -> Tensor:
    """Move the rows ``kept``, in ascending order, to the top of the matrix (R, V), and return them.

    It works in place, some rows at a time, because a copy would double the scratch memory.
    """
    for start in range(0, len(kept), GATHERED):
        chosen = kept[start : start + GATHERED]
        matrix[start : start + len(chosen)] = matrix[chosen]
    return matrix[: len(kept)]


class _MixtureLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *inputs: Any) -> Tensor:  # type: ignore[no-untyped-def]
        *tensors, ctx.options = inputs
        ctx.save_for_backward(*tensors)
        ctx.gradients = gradients = _gradients(ctx.options, *tensors)
        *_, token_weights = tensors
        total: Tensor = (token_weights * gradients[-1]).sum()
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        # Returned without a copy, which would double the memory. A second backward pass computes them again.
        gradients = ctx.gradients or _gradients(ctx.options, *ctx.saved_tensors)
        ctx.gradients = None
        contexts, log_prior, weight, bias, shift, token_nll = (tensor.mul_(grad) for tensor in gradients)
        wanted = ctx.needs_input_grad
        return (
            contexts, log_prior, weight, bias if wanted[3] else None, shift if wanted[4] else None,
            None, token_nll, None,
        )  # fmt: skip


def _gradients(
    options: LossOptions,
    contexts: Tensor,
    log_prior: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shift: Tensor | None,
    targets: Tensor,
    token_weights: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of contexts, prior, weight, bias, shift and token weights; the last are −log P(y_n)."""
    output, fused = Output(weight, bias, shift), _fused(contexts, options)
    if fused is not None:
        found = fused.fused_loss(contexts, log_prior, output, targets, token_weights, options)
    else:
        found = _Gradients(contexts, output, options)
        for part in found.parts():
            found.add(part, contexts[part], log_prior[part], targets[part], token_weights[part])
    return (
        found.of_contexts, found.of_prior, found.of_weight, found.of_bias, found.of_shift, found.token_nll,
    )  # fmt: skip


def _fused(contexts: Tensor, options: LossOptions) -> ModuleType | None:
    """The Triton kernels if they suit the loss, else None."""
    fused = kernel_choice.fused_kernels() if contexts.is_cuda else None
    return fused if fused is not None and fused.suits(contexts, options) else None
