"""The singular values of a log-probability matrix in bounded memory, against one dense decomposition."""

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing import Case, Ceiling, Variant, Work
from lm.spectra.rank import matrix_rank

TOKENS, VOCAB = 6_000, 2_000


def cases(ceiling: Ceiling) -> list[Case]:
    """6,000 contexts of 2,000 words. The floor: triangular, then bidiagonal by reflections, in float64."""
    floor = ceiling.seconds(2 * VOCAB**2 * (TOKENS - VOCAB / 3) + 8 / 3 * VOCAB**3, "float64")
    variants = [
        Variant("numpy.linalg.svd", partial(_work, False), floor),
        Variant("blocks", partial(_work, True), floor),
    ]
    return [Case(f"rank of {TOKENS:,} × {VOCAB:,}", variants)]


def _work(blocked: bool) -> Work:
    generator = np.random.default_rng(1)
    logits = generator.normal(size=(TOKENS, VOCAB))
    matrix = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    if blocked:
        return lambda: matrix_rank(_blocks(matrix), TOKENS, VOCAB)
    return lambda: np.linalg.svd(matrix, compute_uv=False)


def _blocks(matrix: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    for start in range(0, len(matrix), 256):
        yield matrix[start : start + 256]
