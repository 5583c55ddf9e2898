"""The loss of a head alone: contexts in, gradients out."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import Case, Ceiling, Variant, Work
from lm.engine.shapes import shapes_only
from lm.heads.head import Head, HeadConfig
from lm.heads.links import EXP, SIGSOFTMAX, Link
from lm.heads.loss_options import LossOptions, Output
from lm.heads.mixture_loss import one_pass_loss, one_pass_nll

TOKENS, SIZE = 840, 280  # PTB of Yang et al. (2018): 12 streams of 70 tokens, contexts of 280
PRECISIONS = ("float32", "bfloat16")
ONE: dict[str, dict[str, Any]] = {
    "softmax": {},
    "plif": {"kind": "plif"},
    "softmax, exponential temperature": {"temperature": "exponential"},
}
FOUR: dict[str, dict[str, Any]] = {
    "mos": {"kind": "mos", "components": 4},
    "mixtape": {"kind": "mixtape", "components": 4},
    "mixtape, 2,000 gated words": {"kind": "mixtape", "components": 4, "gated_words": 2000},
    "mos, contextual temperature": {"kind": "mos", "components": 4, "temperature": "contextual"},
}


class Inputs:
    """Random contexts, priors and targets, and an output matrix as it is at the start of training."""

    def __init__(self, components: int, vocab: int, tokens: int = TOKENS) -> None:
        torch.manual_seed(1)
        self.contexts = torch.tanh(torch.randn(tokens, components, SIZE)).requires_grad_()
        self.prior = torch.randn(tokens, components, requires_grad=True)
        self.weight = torch.empty(vocab, SIZE).uniform_(-0.1, 0.1).requires_grad_()
        self.bias = torch.zeros(vocab, requires_grad=True)
        self.targets = torch.randint(0, vocab, (tokens,))

    def gradients(self, loss: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            loss, (self.contexts, self.prior, self.weight, self.bias), allow_unused=True
        )


def cases(ceiling: Ceiling) -> list[Case]:
    """The shapes of the papers, and what the other heads cost beside softmax and MoS."""
    shapes = [("mos", 15, 10_000), ("mos", 5, 10_000), ("softmax", 1, 10_000), ("mos", 15, 33_278)]
    found = [_against_naive(kind, components, vocab, ceiling) for kind, components, vocab in shapes]
    found += [_links(1, ceiling), _links(15, ceiling), _skipping(ceiling), _evaluation(ceiling)]
    return [*found, _formulas("one", ONE, ceiling), _formulas("four", FOUR, ceiling)]


def _against_naive(kind: str, components: int, vocab: int, ceiling: Ceiling) -> Case:
    floor = _floor(components, vocab, "float32", ceiling)
    variants = [
        Variant("naive", lambda: work_on(naive, components, vocab), floor),
        *(
            _ours(f"{kind} {precision}", EXP, components, vocab, precision, ceiling)
            for precision in PRECISIONS
        ),
    ]
    if components == 1 and hasattr(torch.nn.functional, "linear_cross_entropy"):
        variants.append(Variant("F.linear_cross_entropy", lambda: work_on(fused_by_torch, 1, vocab), floor))
    return Case(f"{kind}, K = {components}, V = {vocab:,}", variants, ("tokens", TOKENS))


def _links(components: int, ceiling: Ceiling) -> Case:
    """Sigsoftmax beside softmax, MoSS beside MoS."""
    names = ("softmax", "sigsoftmax") if components == 1 else ("mos", "moss")
    variants = [
        _ours(f"{name} {precision}", link, components, 10_000, precision, ceiling)
        for precision in PRECISIONS
        for name, link in zip(names, (EXP, SIGSOFTMAX), strict=True)
    ]
    return Case(f"{names[1]} beside {names[0]}, K = {components}, V = 10,000", variants, memory=False)


def _skipping(ceiling: Ceiling) -> Case:
    """Without the gradients of small posteriors; priors this sharp have a third of them below .001."""

    def work(skip_below: float) -> Work:
        inputs = Inputs(15, 10_000)
        inputs.prior.data.mul_(3)
        options = LossOptions(EXP, skip_below=skip_below)
        return lambda: inputs.gradients(ours(options, inputs))

    floor = _floor(15, 10_000, "float32", ceiling)
    variants = [Variant(f"skip_below = {bound:g}", partial(work, bound), floor) for bound in (0, 0.001, 0.01)]
    name = "mos without small posteriors, K = 15, V = 10,000"
    return Case(name, variants, memory=False, compare=lost)


def lost(exact: Sequence[Tensor], gradients: Sequence[Tensor]) -> dict[str, float]:
    """The error of gradients as a share of the exact ones: the largest of all inputs."""
    shares = [(found - wanted).norm() / wanted.norm() for wanted, found in zip(exact, gradients, strict=True)]
    return {"gradient lost": torch.stack(shares).max().item()}


def _formulas(count: str, settings: dict[str, dict[str, Any]], ceiling: Ceiling) -> Case:
    """Whole heads whose logits take more than one product, beside the first, which does not."""

    def work(config: HeadConfig) -> Work:
        torch.manual_seed(1)
        head = Head(config, SIZE, 10_000)
        hidden = torch.randn(TOKENS, SIZE, requires_grad=True)
        targets = torch.randint(0, 10_000, (TOKENS,))
        return lambda: torch.autograd.grad(head.loss(hidden, targets), [hidden, *head.parameters()])

    configs = {name: HeadConfig(embedding_size=SIZE, **given) for name, given in settings.items()}
    variants = [
        Variant(name, partial(work, config), _floor_of(config, ceiling)) for name, config in configs.items()
    ]
    return Case(f"whole heads of {count}, V = 10,000", variants, ("tokens", TOKENS))


def _floor_of(config: HeadConfig, ceiling: Ceiling) -> float:
    """Three products of every matrix, of words' vectors for every context or gate that they have."""
    with shapes_only():
        head = Head(config, SIZE, 10_000)
    gated, gate_size = (0, 0) if head.gates is None else head.gates.words.shape
    single = 0 if head.gates is None else 10_000 - gated  # words whose contexts are mixed before
    per_word = (
        SIZE * ((10_000 - single) * config.components + single) + (config.components - 1) * gated * gate_size
    )
    names = ("weight", "gates.words", "gates.bias")
    others = (p.numel() for name, p in head.named_parameters() if p.dim() == 2 and name not in names)
    return ceiling.seconds(6 * TOKENS * (per_word + sum(others)))


def _evaluation(ceiling: Ceiling) -> Case:
    """Per-token losses without gradients: one product."""
    options = LossOptions(EXP)

    def work() -> Work:
        inputs = Inputs(15, 10_000)
        output = Output(inputs.weight.detach(), inputs.bias.detach(), None)
        prior = inputs.prior.detach().log_softmax(1)
        contexts = inputs.contexts.detach()
        return lambda: one_pass_nll(contexts, prior, output, inputs.targets, options)

    floor = ceiling.seconds(2 * TOKENS * 15 * SIZE * 10_000)
    return Case("evaluation, K = 15, V = 10,000", [Variant("nll", work, floor)], ("tokens", TOKENS))


def _ours(name: str, link: Link, components: int, vocab: int, precision: str, ceiling: Ceiling) -> Variant:
    options = LossOptions(link, bf16_products=precision == "bfloat16")
    floor = _floor(components, vocab, precision, ceiling)
    return Variant(name, lambda: work_on(partial(ours, options), components, vocab), floor)


def _floor(components: int, vocab: int, precision: str, ceiling: Ceiling) -> float:
    """Three products of contexts and output matrix."""
    return ceiling.seconds(3 * 2 * TOKENS * components * SIZE * vocab, precision)


def work_on(loss: Callable[[Inputs], Tensor], components: int, vocab: int, tokens: int = TOKENS) -> Work:
    inputs = Inputs(components, vocab, tokens)
    return lambda: inputs.gradients(loss(inputs))


def ours(options: LossOptions, inputs: Inputs) -> Tensor:
    """The product's own loss of the inputs."""
    output = Output(inputs.weight, inputs.bias, None)
    return one_pass_loss(inputs.contexts, inputs.prior.log_softmax(1), output, inputs.targets, None, options)


def naive_loss(
    contexts: Tensor, log_prior: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> Tensor:
    """The papers' formula as it stands: every tensor kept, probabilities mixed, 1e-8 inside the logarithm."""
    probabilities = torch.nn.functional.linear(contexts, weight, bias).softmax(2)  # (N, K, V)
    mixed = (log_prior.exp()[..., None] * probabilities).sum(1)
    return -(mixed + 1e-8).log().gather(1, targets[:, None]).sum()


def naive(inputs: Inputs) -> Tensor:
    """:func:`naive_loss` of the inputs."""
    return naive_loss(
        inputs.contexts, inputs.prior.log_softmax(1), inputs.weight, inputs.bias, inputs.targets
    )


def fused_by_torch(inputs: Inputs) -> Tensor:
    """Torch's own loss of a linear layer, which knows one softmax."""
    loss: Tensor = torch.nn.functional.linear_cross_entropy(  # type: ignore[attr-defined]
        inputs.contexts[:, 0], inputs.weight, inputs.targets, linear_bias=inputs.bias, reduction="sum"
    )
    return loss
