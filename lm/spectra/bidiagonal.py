"""Singular values of a band matrix: bulge chasing to bidiagonal form, then bisection.

LAPACK has the same in DGBBRD and DSTEBZ, which NumPy and PyTorch do not expose. Their dense routines need the
whole matrix in memory.
"""

import numpy as np
from numpy.typing import NDArray

from lm.spectra.factor import Band
from lm.spectra.scratch import Matrix
from lm.steps import Steps

ROWS_AT_ONCE = 100  # of the tridiagonal matrix in one step
HALVINGS = 58  # of an interval around all singular values, to less than ε·σ_max / 16


def to_bidiagonal(band: Band, steps: Steps) -> tuple[Matrix, Matrix]:
    """Diagonal (n,) and superdiagonal (n − 1,) of a bidiagonal matrix with the singular values of the band.

    Every sweep shortens one row to two entries. Its reflection fills a block below the diagonal. The next
    reflection empties the first column of that block and fills a block right of the band, and so on to the
    last row. The next sweep removes the rest of each bulge (Lang 1996).
    """
    matrix, size, width = band.entries, band.size, band.width
    for sweep in range(size - 2):
        pivot = sweep
        for start in range(sweep + 1, size - 1, width):
            stop = min(start + width, size)
            block = matrix[pivot:stop, start:stop]
            vector, scale = _householder(block[0])
            if scale:
                block -= np.multiply.outer(block @ (scale * vector), vector)
                block[0, 1:] = 0.0
            block = matrix[start:stop, start : min(start + 2 * width, size)]
            vector, scale = _householder(block[:, 0])
            if scale:
                block -= np.multiply.outer(scale * vector, vector @ block)
                block[1:, 0] = 0.0
            pivot = start
        steps.advance((size - sweep) * width * 160)
    diagonal = np.array([matrix[i, i] for i in range(size)])
    return diagonal, np.array([matrix[i, i + 1] for i in range(size - 1)])


def _householder(values: Matrix) -> tuple[Matrix, float]:
    """(v, τ) with v_0 = 1, such that (I − τ v vᵀ) values has zeros after its first entry, or τ = 0."""
    rest = values[1:]
    square = float(rest @ rest)
    if square == 0.0:
        return values, 0.0
    first = float(values[0])
    result = -np.copysign(np.sqrt(first * first + square), first)
    vector = values / (first - result)
    vector[0] = 1.0
    return vector, float((result - first) / result)


def bidiagonal_values(diagonal: Matrix, above: Matrix, steps: Steps) -> Matrix:
    """All singular values of a bidiagonal matrix, largest first, each to about ε·σ_max / 16.

    They are the positive eigenvalues of a symmetric tridiagonal matrix (Golub and Kahan 1965). Its diagonal
    is zero, and its off-diagonal is d_1, e_1, d_2, …. Sturm counts at n points halve n intervals at once.
    """
    size = len(diagonal)
    bound = float(np.abs(diagonal).max() + np.abs(above).max(initial=0.0))
    if bound == 0.0:
        return np.zeros(size)
    squares = np.zeros(2 * size - 1)
    squares[::2], squares[1::2] = (diagonal / bound) ** 2, (above / bound) ** 2
    squares = np.maximum(squares, np.finfo(np.float64).tiny)
    lower, upper = np.zeros(size), np.full(size, 1.0 + 1e-15)
    order = np.arange(size)  # of the values, smallest first
    for _ in range(HALVINGS):
        middle = (lower + upper) / 2
        enough = _count_below(squares, middle, steps) > order
        upper = np.where(enough, middle, upper)
        lower = np.where(enough, lower, middle)
    return bound * np.sort((lower + upper) / 2)[::-1]


def _count_below(squares: Matrix, points: Matrix, steps: Steps) -> NDArray[np.int64]:
    """Number of singular values below each of the positive points.

    A pivot of zero becomes infinite and then contributes 0, which is correct, since no square is zero.
    """
    pivots = -points
    counts = np.zeros(len(points), np.int64)
    below = np.ones(len(points), bool)
    for first in range(0, len(squares), ROWS_AT_ONCE):
        tally = np.zeros(len(points), np.int8)  # of at most 100 lines, since bytes add fast
        with np.errstate(divide="ignore"):
            for square in squares[first : first + ROWS_AT_ONCE]:
                np.divide(-square, pivots, out=pivots)
                np.subtract(pivots, points, out=pivots)
                np.less(pivots, 0.0, out=below)
                np.add(tally, below.view(np.int8), out=tally)
        counts += tally
        steps.advance(ROWS_AT_ONCE * len(points) * 100)
    return counts + 1 - len(points)
