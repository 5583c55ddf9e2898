# mypy: ignore-errors
"""Triton kernels of the mixture loss; ``fused.py`` launches and explains them.

A program owns a block of rows or words, keeps the block's operand, and loops over its part of the others.
E is split into WIDE and REST columns, two powers of two, because Triton's tiles must have such sizes.
Operands are (R, SIZE) and (V, SIZE); all columns past E are 0.
"""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-1e38)  # start of maxima; finite, to avoid −∞ − −∞


@triton.jit
def link(logits, shift, SIGMOID: tl.constexpr):
    """log g and its slope d log g / dz, as in ``lm/heads/links.py``."""
    scores, slope = logits, 1.0
    if SIGMOID:
        moved = logits + shift
        tail = tl.exp(-tl.abs(moved))
        scores = logits + tl.minimum(moved, 0.0) - tl.log(1.0 + tail)
        slope = 1.0 + tl.where(moved > 0, tail, 1.0) / (1.0 + tail)
    return scores, slope


@triton.jit
def block(
    matrix, first, count,
    COLUMN: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Load (BLOCK, WIDTH) of a (count, SIZE) matrix from row ``first`` and column COLUMN; zeros outside."""
    rows, columns = tl.arange(0, BLOCK)[:, None], COLUMN + tl.arange(0, WIDTH)[None, :]
    inside = (rows < count - first) & (columns < SIZE)
    start = matrix + tl.cast(first, tl.int64) * SIZE
    return tl.load(start + rows * SIZE + columns, mask=inside, other=0.0)


@triton.jit
def bias_of(bias, numbers, words):
    """Load biases; −∞ past the last word, for a share of 0."""
    return tl.load(bias + numbers, mask=numbers < words, other=float("-inf"))


@triton.jit
def of_rows(numbers, rows, targets, log_totals, factors):
    """Load target, L and f of rows; past the last row, values for which every share is 0."""
    inside = numbers < rows
    target = tl.load(targets + numbers, mask=inside, other=-1)
    log_total = tl.load(log_totals + numbers, mask=inside, other=float("inf"))
    return target, log_total, tl.load(factors + numbers, mask=inside, other=0.0)


@triton.jit(do_not_specialize=["rows"])  # the number of rows varies by batch
def totals(
    contexts, weight, bias, shift, targets, log_totals, rows, words, per_part,
    SIGMOID: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    OWNED: tl.constexpr, STREAMED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """log Σ_v g over the words of a part except the target, (parts, R)."""
    first, begin = tl.program_id(0) * OWNED, tl.program_id(1) * per_part
    numbers = first + tl.arange(0, OWNED)
    target = tl.load(targets + numbers, mask=numbers < rows, other=-1)
    moved = tl.load(shift)
    own_wide = block(contexts, first, rows, 0, WIDE, SIZE, OWNED)
    if REST:
        own_rest = block(contexts, first, rows, WIDE, REST, SIZE, OWNED)
    peak = tl.full((OWNED,), LOWEST, tl.float32)
    total = tl.zeros((OWNED,), tl.float32)
    for start in range(begin, tl.minimum(begin + per_part, words), STREAMED):
        passing = start + tl.arange(0, STREAMED)
        wide = block(weight, start, words, 0, WIDE, SIZE, STREAMED)
        logits = tl.dot(own_wide, tl.trans(wide), input_precision=PRECISION)
        if REST:
            rest = block(weight, start, words, WIDE, REST, SIZE, STREAMED)
            logits = tl.dot(own_rest, tl.trans(rest), logits, input_precision=PRECISION)
        logits += bias_of(bias, passing, words)[None, :]
        scores, _ = link(logits, moved, SIGMOID)
        scores = tl.where(passing[None, :] == target[:, None], float("-inf"), scores)
        higher = tl.maximum(peak, tl.max(scores, 1))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(scores - higher[:, None]), 1)
        peak = higher
    place = tl.cast(tl.program_id(1), tl.int64) * rows + numbers
    tl.store(log_totals + place, peak + tl.log(total), mask=numbers < rows)


@triton.jit(do_not_specialize=["rows"])
def shares(
    owned, streamed, bias, shift, targets, log_totals, factors, products, sums, rows, words, per_part,
    OF_WORDS: tl.constexpr, SIGMOID: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr,
    REST: tl.constexpr, OWNED: tl.constexpr, STREAMED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Shares times the streamed rows or words of a part, (parts, owned, E), and their sums, (parts, owned).

    With OF_WORDS, words are owned and rows are streamed; otherwise, rows are owned and words are streamed.
    """
    count, others = rows, words
    if OF_WORDS:
        count, others = words, rows
    first, begin = tl.program_id(0) * OWNED, tl.program_id(1) * per_part
    numbers = first + tl.arange(0, OWNED)
    moved = tl.load(shift)
    if OF_WORDS:
        addend = bias_of(bias, numbers, words)[:, None]
    else:
        target, log_total, factor = of_rows(numbers, rows, targets, log_totals, factors)
    own_wide = block(owned, first, count, 0, WIDE, SIZE, OWNED)
    sum_wide = tl.zeros((OWNED, WIDE), tl.float32)
    if REST:
        own_rest = block(owned, first, count, WIDE, REST, SIZE, OWNED)
        sum_rest = tl.zeros((OWNED, REST), tl.float32)
    sum_shares = tl.zeros((OWNED,), tl.float32)
    for start in range(begin, tl.minimum(begin + per_part, others), STREAMED):
        passing = start + tl.arange(0, STREAMED)
        wide = block(streamed, start, others, 0, WIDE, SIZE, STREAMED)
        logits = tl.dot(own_wide, tl.trans(wide), input_precision=PRECISION)
        if REST:
            rest = block(streamed, start, others, WIDE, REST, SIZE, STREAMED)
            logits = tl.dot(own_rest, tl.trans(rest), logits, input_precision=PRECISION)
        if OF_WORDS:
            target, log_total, factor = of_rows(passing, rows, targets, log_totals, factors)
            scores, slope = link(logits + addend, moved, SIGMOID)
            shares = tl.exp(scores - log_total[None, :]) * slope * factor[None, :]
            shares = tl.where(numbers[:, None] == target[None, :], 0.0, shares)
        else:
            addend = bias_of(bias, passing, words)[None, :]
            scores, slope = link(logits + addend, moved, SIGMOID)
            shares = tl.exp(scores - log_total[:, None]) * slope * factor[:, None]
            shares = tl.where(passing[None, :] == target[:, None], 0.0, shares)
        sum_shares += tl.sum(shares, 1)
        sum_wide = tl.dot(shares.to(wide.dtype), wide, sum_wide, input_precision=PRECISION)
        if REST:
            sum_rest = tl.dot(shares.to(rest.dtype), rest, sum_rest, input_precision=PRECISION)
    before = tl.cast(tl.program_id(1), tl.int64) * count
    place = products + (before + first) * SIZE + tl.arange(0, OWNED)[:, None] * SIZE
    inside, columns = (numbers < count)[:, None], tl.arange(0, WIDE)[None, :]
    tl.store(place + columns, sum_wide, mask=inside & (columns < SIZE))
    if REST:
        columns = WIDE + tl.arange(0, REST)[None, :]
        tl.store(place + columns, sum_rest, mask=inside & (columns < SIZE))
    tl.store(sums + before + numbers, sum_shares, mask=numbers < count)
