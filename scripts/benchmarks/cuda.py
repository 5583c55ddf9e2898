"""The loss of a head on a GPU: naive, eager, fused, and torch's own, beside the roofline. No GPU, no cases.

A round is CALLS losses with their gradients, started one after another and waited for once, as in training.
"""

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.head import SIZE, Inputs, fused_by_torch, naive, ours
from benchmarks.timing import Case, Ceiling, Variant, Work
from lm.heads.fused_switch import FUSED
from lm.heads.links import EXP, SIGSOFTMAX
from lm.heads.loss_options import LossOptions, Output
from lm.heads.mixture_loss import one_pass_nll

CALLS = 10
SHAPES = ((15, 10_000, 840), (5, 10_000, 840), (1, 10_000, 840), (15, 33_278, 840), (1, 33_278, 8192))
PRECISIONS = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
Loss = Callable[[Inputs], object]


class Roofline(NamedTuple):
    """Peak throughput of the GPU."""

    flops: dict[str, float]  # FLOP/s by precision
    bandwidth: float  # bytes/s, read and written

    def seconds(self, products: int, components: int, vocab: int, tokens: int, precision: str) -> float:
        """The least time of a number of products of the size of the logits."""
        rows = tokens * components
        arithmetic = 2 * products * rows * SIZE * vocab / self.flops[precision]
        memory = 2 * 4 * SIZE * (rows + vocab) / self.bandwidth  # operands read, gradients written
        return CALLS * max(arithmetic, memory)


def cases(ceiling: Ceiling) -> list[Case]:
    """Time and memory of one loss and its gradients; ``ceiling``, the CPU's, is not what counts here."""
    if not torch.cuda.is_available():
        return []
    roofline = _roofline()
    found = [_loss(*shape, roofline) for shape in SHAPES]
    return [*found, _links(roofline), _evaluation(roofline)]


def peak_megabytes(work: Work) -> float:
    """Memory on the GPU that a round needs above what is there before it; after one to warm up."""
    work()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _loss(components: int, vocab: int, tokens: int, roofline: Roofline) -> Case:
    shape = (components, vocab, tokens)

    def variant(name: str, loss: Loss, precision: str) -> Variant:
        prepare = partial(_work, loss, precision, shape)
        return Variant(f"{name} {precision}", prepare, roofline.seconds(3, *shape, precision))

    variants = [
        variant("naive", _gradients(naive), "float32"),
        variant("naive, autocast", partial(_autocast, naive), "bfloat16"),
    ]
    for precision in PRECISIONS:
        options = LossOptions(EXP, bf16_products=precision == "bfloat16")
        variants.append(variant("eager", partial(_eager, options), precision))
        if find_spec("triton") is not None:
            variants.append(variant("fused", partial(_fused, options), precision))
    if components == 1 and hasattr(torch.nn.functional, "linear_cross_entropy"):
        variants += [
            variant("F.linear_cross_entropy", _gradients(fused_by_torch), "float32"),
            variant("F.linear_cross_entropy, autocast", partial(_autocast, fused_by_torch), "bfloat16"),
        ]
    return Case(f"K = {components}, V = {vocab:,}, N = {tokens:,}", variants, ("tokens", CALLS * tokens))


def _links(roofline: Roofline) -> Case:
    """MoSS beside MoS, through the dispatch of the product."""
    shape = SHAPES[0]
    floor = roofline.seconds(3, *shape, "bfloat16")
    variants = []
    for name, link in (("mos", EXP), ("moss", SIGSOFTMAX)):
        loss = _gradients(partial(ours, LossOptions(link, bf16_products=True)))
        variants.append(Variant(f"{name} bfloat16", partial(_work, loss, "bfloat16", shape), floor))
    return Case("moss beside mos, K = 15, V = 10,000", variants, memory=False)


def _evaluation(roofline: Roofline) -> Case:
    """Per-token losses without gradients: one product."""
    shape = SHAPES[0]
    variants = [
        Variant(
            f"nll {precision}", partial(_work, _nll, precision, shape), roofline.seconds(1, *shape, precision)
        )
        for precision in ("float32", "tf32")
    ]
    return Case("evaluation, K = 15, V = 10,000", variants, ("tokens", CALLS * shape[2]))


def _work(loss: Loss, precision: str, shape: tuple[int, int, int]) -> Work:
    with torch.device("cuda"):
        inputs = Inputs(*shape)

    def work() -> None:
        with _float32_products("tf32" if precision == "tf32" else "ieee"):
            for _ in range(CALLS):
                loss(inputs)
            torch.cuda.synchronize()

    return work


@contextmanager
def _float32_products(precision: str) -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, precision
    try:
        yield
    finally:
        matmul.fp32_precision = before


def _gradients(loss: Callable[[Inputs], Tensor]) -> Loss:
    return lambda inputs: inputs.gradients(loss(inputs))


def _autocast(loss: Callable[[Inputs], Tensor], inputs: Inputs) -> object:
    """``loss`` as PyTorch's mixed precision computes it."""
    with torch.autocast("cuda", torch.bfloat16):
        value = loss(inputs)
    return inputs.gradients(value)


def _eager(options: LossOptions, inputs: Inputs) -> object:
    """The product's loss with its compiled paths switched off."""
    with patch.dict(os.environ, {FUSED: "0"}):
        return inputs.gradients(ours(options, inputs))


def _fused(options: LossOptions, inputs: Inputs) -> object:
    """The kernels themselves, in precisions too for which the dispatch would not choose them."""
    from lm.heads.fused import fused_loss

    log_prior = inputs.prior.log_softmax(1)
    output = Output(inputs.weight, inputs.bias, None)
    ones = torch.ones_like(inputs.contexts[:, 0, 0])
    return fused_loss(inputs.contexts, log_prior, output, inputs.targets, ones, options)


def _nll(inputs: Inputs) -> object:
    output = Output(inputs.weight, inputs.bias, None)
    return one_pass_nll(
        inputs.contexts, inputs.prior.log_softmax(1), output, inputs.targets, LossOptions(EXP)
    )


def _roofline() -> Roofline:
    """From a large square product in each precision, and a copy of a gigabyte."""
    flops = {}
    for precision, dtype in PRECISIONS.items():
        left, right = (torch.randn(8192, 8192, device="cuda").to(dtype) for _ in range(2))
        with _float32_products("tf32" if precision == "tf32" else "ieee"):
            flops[precision] = 2 * 8192**3 / _seconds(partial(torch.mm, left, right))
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    return Roofline(flops, 2 * source.nbytes / _seconds(partial(target.copy_, source)))


def _seconds(work: Work, rounds: int = 9) -> float:
    """The median time on the GPU, after three rounds to warm up."""
    found = []
    for number in range(rounds + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        if number >= 3:
            found.append(start.elapsed_time(end) / 1000)
    return statistics.median(found)
