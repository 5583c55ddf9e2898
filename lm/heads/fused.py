"""Mixture loss and its gradients on CUDA, by Triton kernels that keep no logit in memory.

A tile of logits, some rows by some words, exists only on the chip. The first kernel reduces the tiles of
every row r to log Σ_v g(z_rv) over all words except the row's target y. The rest of the loss has N·K numbers
and uses tensor operations. It consists of the targets' logits, L_r = log Σ_v g(z_rv) over all words, and
posteriors times token weights, f_r. The second kernel computes the tiles again, as shares
s_rv = f_r · p_r(v) · slope and 0 at v = y, and is launched twice::

    Σ_v s_rv W_v    each program has a block of rows and loops over the words
    Σ_r s_rv c_r    each program has a block of words and loops over the rows

These are five products of the size of the logits. The eager path, which keeps a chunk of logits, has three.

At v = y the gradient is −f_r · slope · (1 − p_r(y)). This one number a row needs no tile, so it is exact in
float32. As a share rounded to bfloat16, it would lose most of its value for p_r(y) near 1.

All sums are float32 and in a fixed order, because no two programs write to one place. Repeated results are
therefore bit-identical. The scheme is that of FlashAttention (Dao et al. 2022) and Cut Your Losses (Wijmans
et al. 2025).

N tokens · K components · E context size · V words · R = N·K rows.
"""

from functools import cache
from math import ceil
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.heads import fused_tiles
from lm.heads.fused_switch import tell_without_fused
from lm.heads.links import EXP, SIGSOFTMAX, Link
from lm.heads.loss_options import LossOptions, Output, logits_of

# Any, because Triton's annotations would refuse plain numbers at a launch
_totals: Any = fused_tiles.totals
_shares: Any = fused_tiles.shares
REGISTERS = 13 * 2**12  # most numbers in accumulators and tiles of a program of 8 warps without spilling
PROGRAMS = 3  # most programs a multiprocessor when a launch is split to keep all of them busy
TOLERANCE = 0.02  # relative; rounding to bfloat16 gives about .004 on the example
START_AND_END = 4  # duration of start and end of a program, in streamed blocks
OVERHEAD = 2**11  # bytes of shared memory besides blocks


class Gradients(NamedTuple):
    """Losses of tokens, and gradients of Σ_n w_n · nll_n."""

    token_nll: Tensor  # (N,)
    of_contexts: Tensor  # (N, K, E)
    of_prior: Tensor  # (N, K), at log π
    of_weight: Tensor  # (V, E)
    of_bias: Tensor  # (V,)
    of_shift: Tensor  # ()


class Tiles(NamedTuple):
    """Tile sizes of a program: rows owned, rows streamed at a time, warps, and blocks in flight."""

    owned: int
    streamed: int
    warps: int
    stages: int


TENSOR_CORES = (Tiles(128, 64, 8, 2), Tiles(64, 64, 8, 2), Tiles(64, 32, 8, 2))
NO_TENSOR_CORES = Tiles(32, 32, 8, 1)  # more would spill
INTERPRETED = Tiles(16, 16, 1, 1)


@cache
def works(device: torch.device, size: int, link: Link, bf16_products: bool) -> bool:
    """True if the kernels compile for contexts of a size and pass an example; logs a warning if not."""
    try:
        disagreement = error_on(device, size, link, bf16_products)
    except Exception as error:  # Triton, its compiler or the driver may raise anything
        wrong = f"{type(error).__name__}: {error}".splitlines()[0]
    else:
        if disagreement <= TOLERANCE:
            return True
        wrong = f"relative error of {disagreement:.1e} on an example"
    tell_without_fused(wrong)
    return False


@torch.enable_grad()
def error_on(device: torch.device, size: int, link: Link, bf16_products: bool) -> float:
    """Largest relative error of losses and gradients on an example, against automatic differentiation."""
    generator = torch.Generator().manual_seed(1)

    def leaf(*shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
        return drawn.to(device).requires_grad_()

    contexts, log_prior, weight, bias = leaf(70, 2, size), leaf(70, 2), leaf(150, size), leaf(150)
    shift = leaf() if link is SIGSOFTMAX else None
    leaves = [tensor for tensor in (contexts, log_prior, weight, bias, shift) if tensor is not None]
    targets = torch.arange(70, device=device)
    scaled = contexts / size**0.5
    log_p = link.log_normalised(scaled @ weight.t() + bias, shift)
    nll = -(log_prior + log_p[targets, :, targets]).logsumexp(1)
    wanted = [nll, *torch.autograd.grad(nll.sum(), [scaled, *leaves[1:]])]
    options, ones = LossOptions(link, bf16_products), torch.ones_like(nll)
    found = fused_loss(scaled, log_prior, Output(weight, bias, shift), targets, ones, options)
    errors = [(a - b).norm() / b.norm() for a, b in zip(found, wanted, strict=False)]
    return torch.stack(errors).max().item()  # NaN if any error is


def suits(contexts: Tensor, options: LossOptions) -> bool:
    """True if the kernels can and should compute a loss at ``contexts`` (N, K, E) on CUDA.

    They should not if products must be exact float32. Tensor cores cannot help then, and the three products
    of the eager path cost less than five. They cannot if E is too large for tiles on the chip, if small
    posteriors are to be skipped, or if :func:`works` is False.
    """
    if torch.version.cuda is None or options.skip_below:
        return False
    if contexts.dtype != torch.float32 or options.link not in (EXP, SIGSOFTMAX):
        return False
    if not options.bf16_products and _precision() == "ieee":
        return False
    needed = (8, 0) if options.bf16_products else (9, 0)  # tiles of tf32 spill on older devices
    if torch.cuda.get_device_capability(contexts.device) < needed:
        return False
    size = contexts.shape[-1]
    return _tiles_on(contexts, options) is not None and works(
        contexts.device, size, options.link, options.bf16_products
    )


@torch.no_grad()
def fused_loss(
    contexts: Tensor,
    log_prior: Tensor,
    output: Output,
    targets: Tensor,
    token_weights: Tensor,
    options: LossOptions,
) -> Gradients:
    """Losses and gradients for contexts (N, K, E), float32, with log π (N, K), targets (N,), weights (N,).

    Raises:
        ValueError: if E is too large for the device.
    """
    torch._assert_async((targets >= 0).all())  # negative ones would index words from the end
    at_words = logits_of(targets, contexts, output)
    scores = options.link.log(at_words, output.shift)
    kernels = _Kernels(contexts, output, targets, options)
    others = kernels.log_totals_of_others()
    log_totals = torch.logaddexp(others, scores)
    joint = log_prior + scores - log_totals  # log π_k p_k(y), (N, K)
    nll = -joint.logsumexp(1)  # (N,)
    posterior = (joint + nll[:, None]).exp() * token_weights[:, None]  # w·r_k, (N, K)
    of_contexts = kernels.towards_contexts(posterior, log_totals)
    of_weight, of_bias = kernels.towards_weight(posterior, log_totals)

    at_target = -(others - log_totals).exp() * posterior * options.link.slope(at_words, output.shift)
    of_contexts.addcmul_(output.weight[targets][:, None], at_target[..., None])
    towards = torch.einsum("nk,nke->ne", at_target, contexts)
    # unlike index_add_, this adds in a fixed order on CUDA
    of_weight.index_put_((targets,), towards, accumulate=True)
    of_bias.index_put_((targets,), at_target.sum(1), accumulate=True)
    # the shift as in the eager path: Σ_v d loss / d log g = 0 in every row
    return Gradients(nll, of_contexts, -posterior, of_weight, of_bias, of_bias.sum())


def _precision() -> str:
    """Precision of Triton's float32 products, equal to torch's setting."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


def _widths(size: int) -> tuple[int, int]:
    """Two widths whose sum covers ``size``, powers of two from 16 (or 0 for the second): 280 → 256 and 32."""
    wide = max(16, 1 << size.bit_length() - 1)
    rest = size - wide
    return wide, 0 if rest <= 0 else max(16, 1 << (rest - 1).bit_length())


def tiles_for(size: int, dtype: torch.dtype, precision: str, shared: int) -> Tiles | None:
    """Largest tiles that fit registers and ``shared`` bytes for contexts of ``size``; None if none fits."""
    width = sum(_widths(size))
    if dtype == torch.float32 and precision == "ieee":
        return NO_TENSOR_CORES if width <= 320 else None
    for tiles in TENSOR_CORES:
        staged = (tiles.owned + tiles.stages * tiles.streamed) * width * dtype.itemsize
        held = tiles.owned * (width + 2 * tiles.streamed)
        if staged + OVERHEAD <= shared and held <= REGISTERS:
            return tiles
    return None


def _tiles_on(contexts: Tensor, options: LossOptions) -> Tiles | None:
    if contexts.device.type == "cpu":
        return INTERPRETED
    dtype = torch.bfloat16 if options.bf16_products else torch.float32
    properties = torch.cuda.get_device_properties(contexts.device)
    shared = getattr(properties, "shared_memory_per_block_optin", 48 * 2**10)
    return tiles_for(contexts.shape[-1], dtype, _precision(), shared)


class _Kernels:
    """Operands of a loss in the kernels' layout, and launches of the kernels."""

    def __init__(self, contexts: Tensor, output: Output, targets: Tensor, options: LossOptions) -> None:
        tiles = _tiles_on(contexts, options)
        if tiles is None:
            raise ValueError(f"no tile for contexts of size {contexts.shape[-1]} fits on {contexts.device}")
        self.tiles, self.link, self.shift, self.shape = tiles, options.link, output.shift, contexts.shape
        dtype = torch.bfloat16 if options.bf16_products else torch.float32
        self.contexts, self.weight = _operand(contexts.flatten(0, 1), dtype), _operand(output.weight, dtype)
        nothing = output.weight.new_zeros(len(output.weight))
        self.addends = tuple(nothing if p is None else p.contiguous() for p in (output.bias, output.shift))
        self.targets = targets.to(torch.int32).repeat_interleave(contexts.shape[1])  # (R,)
        wide, rest = _widths(contexts.shape[-1])
        self.constants = {
            "SIGMOID": options.link is SIGSOFTMAX,
            "SIZE": self.weight.shape[1],
            "WIDE": wide,
            "REST": rest,
            "OWNED": tiles.owned,
            "STREAMED": tiles.streamed,
            "PRECISION": _precision(),
            "num_warps": tiles.warps,
            "num_stages": tiles.stages,
            "enable_fp_fusion": True,
        }

    def log_totals_of_others(self) -> Tensor:
        """log Σ_v g over all words except the target, (N, K)."""
        rows, words = len(self.contexts), len(self.weight)
        grid, per_part = self._grid(rows, words)
        log_totals = self.addends[0].new_empty(grid[1], rows)
        with torch.cuda.device_of(self.contexts):
            _totals[grid](
                self.contexts, self.weight, *self.addends, self.targets, log_totals,
                rows, words, per_part, **self.constants,
            )  # fmt: skip
        return log_totals.logsumexp(0).view(self.shape[:2])

    def towards_contexts(self, factors: Tensor, log_totals: Tensor) -> Tensor:
        """Σ_v s_rv W_v, (N, K, E), for f and L (N, K)."""
        products, _ = self._products(self.contexts, self.weight, factors, log_totals)
        return products.view(self.shape)

    def towards_weight(self, factors: Tensor, log_totals: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_r s_rv c_r, (V, E), and Σ_r s_rv, (V,), for f and L (N, K)."""
        return self._products(self.weight, self.contexts, factors, log_totals)

    def _products(
        self, owned: Tensor, streamed: Tensor, factors: Tensor, log_totals: Tensor
    ) -> tuple[Tensor, Tensor]:
        grid, per_part = self._grid(len(owned), len(streamed))
        products = factors.new_empty(grid[1], *owned.shape)
        sums = factors.new_empty(grid[1], len(owned))
        with torch.cuda.device_of(owned):
            _shares[grid](
                owned, streamed, *self.addends, self.targets, log_totals.contiguous(), factors.contiguous(),
                products, sums, len(self.contexts), len(self.weight), per_part,
                OF_WORDS=owned is self.weight, **self.constants,
            )  # fmt: skip
        total = products[0] if grid[1] == 1 else products.sum(0)
        return total[:, : self.shape[-1]].contiguous(), sums.sum(0)

    def _grid(self, owned: int, streamed: int) -> tuple[tuple[int, int], int]:
        """Launch grid (blocks of owned rows, parts of streamed rows), and the length of a part.

        Parts keep every multiprocessor busy if there are few blocks. Their sums are added afterwards.
        """
        processors = 4
        if self.contexts.device.type == "cuda":
            processors = torch.cuda.get_device_properties(self.contexts.device).multi_processor_count
        blocks, pieces = ceil(owned / self.tiles.owned), max(1, ceil(streamed / self.tiles.streamed))
        most = max(1, min(pieces, PROGRAMS * processors // max(1, blocks)))

        def time(parts: int) -> int:
            return ceil(blocks * parts / processors) * (ceil(pieces / parts) + START_AND_END)

        each = ceil(pieces / min(range(1, most + 1), key=time))
        return (blocks, ceil(pieces / each)), each * self.tiles.streamed


def _operand(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """``matrix`` in the precision of the products, with rows padded to 16 bytes for fast loads."""
    lacking = -matrix.shape[1] % 8
    operand = matrix.to(dtype)
    return F.pad(operand, (0, lacking)) if lacking else operand.contiguous()
