"""Reduction of a tall or square matrix on disk to band form by orthogonal transformations of panels.

Householder reflections are backward stable, so singular values have an error of a few ε·σ_max. The Gram
matrix would need only one pass, but loses every singular value below √ε·σ_max.

m rows · n columns · w width of a panel. Memory is a multiple of n·w, regardless of m.
"""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from lm.spectra.scratch import ITEM, Matrix, ScratchMatrix
from lm.steps import Steps


@dataclass(frozen=True)
class Reflectors:
    """Q = I − Y T Yᵀ (Schreiber and Van Loan 1989), with panel = Q [triangle; 0]."""

    triangle: Matrix  # (k, w) upper trapezoidal, k = min(m, w)
    vectors: Matrix  # Y: (m, k), unit lower trapezoidal
    mixing: Matrix  # T: (k, k), upper triangular


def reflect(panel: Matrix) -> Reflectors:
    """QR factorisation of an (m, w) panel, with Q in compact WY form."""
    packed, scales = np.linalg.qr(panel, mode="raw")
    packed, size = packed.T, len(scales)
    vectors = np.tril(packed[:, :size], -1)
    np.fill_diagonal(vectors, 1.0)
    products = vectors.T @ vectors
    mixing = np.zeros((size, size))
    for index, scale in enumerate(scales):
        mixing[:index, index] = -scale * (mixing[:index, :index] @ products[:index, index])
        mixing[index, index] = scale
    return Reflectors(np.triu(packed[:size]), vectors, mixing)


def merge(triangle: ScratchMatrix, rows: Matrix, width: int, steps: Steps) -> None:
    """One step of TSQR: replace R by the R of [R; rows]. ``rows`` (m, n) is overwritten.

    Reflections of [R; rows] preserve the zeros of R, since the upper part of Y is the identity.
    """
    size = triangle.shape[1]
    chunk = max(width, size // 16)  # columns per update, to bound the products in memory
    for start in range(0, size, width):
        stop = min(start + width, size)
        place = slice(start, stop), slice(start, size)
        upper = triangle.read(*place)
        reflectors = reflect(np.concatenate([upper[:, : stop - start], rows[:, start:stop]]))
        lower = reflectors.vectors[stop - start :]
        upper[:, : stop - start] = reflectors.triangle
        for left in range(stop, size, chunk):
            above = upper[:, left - start : left - start + chunk]
            below = rows[:, left : left + chunk]
            mixed = reflectors.mixing.T @ (above + lower.T @ below)
            above -= mixed
            below -= lower @ mixed
        triangle.write(*place, upper)
        steps.advance(4 * len(rows) * (stop - start) * (size - start))


class Band:
    """A square matrix with entries at most ``width − 1`` below and ``2·width − 1`` right of the diagonal.

    ``entries[i, j]`` reads and writes them as in a dense matrix. Positions outside the band must not be
    accessed, since they alias others.
    """

    def __init__(self, size: int, width: int) -> None:
        self.size, self.width = size, width
        self._stored = np.zeros(size * 3 * width)
        stride = (3 * width - 1) * ITEM
        self.entries: Matrix = as_strided(self._stored[width:], (size, size), (stride, ITEM))


def to_band(matrix: ScratchMatrix, width: int, steps: Steps) -> Band:
    """Reduce an upper triangular (n, n) matrix, which is overwritten, to upper bandwidth ``width``.

    This is the first of the two stages of bidiagonalisation (Großer and Lang 1999). Reflections from the left
    zero a panel of columns below the diagonal block. Reflections from the right zero a panel of rows right of
    the next block.
    """
    size = matrix.shape[0]
    band = Band(size, width)
    panel = np.concatenate(
        [matrix.read(slice(0, width), slice(0, width)), np.zeros((max(0, size - width), min(width, size)))]
    )  # (n − start, w): the columns from start to stop, from row start on
    for start in range(0, size, width):
        stop = min(start + width, size)
        left = reflect(panel)
        _put(band, start, start, left.triangle)
        if stop == size:
            steps.advance(4 * width * width * width)
            break
        panel = _empty_rows(matrix, band, start, left, steps)
    return band


def _empty_rows(matrix: ScratchMatrix, band: Band, start: int, left: Reflectors, steps: Steps) -> Matrix:
    """Apply ``left``, then reflect from the right. Returns the next panel of columns."""
    size, width = band.size, band.width
    stop = start + width
    products = np.zeros((width, size - stop))  # Yᵀ A
    for first in range(start, size, width):
        rows = slice(first, min(first + width, size))
        part = matrix.read(rows, slice(stop, size))
        products += left.vectors[rows.start - start : rows.stop - start].T @ part
        steps.advance(2 * part.size * width)
    products = left.mixing.T @ products
    top = matrix.read(slice(start, stop), slice(stop, size))
    top -= left.vectors[:width] @ products
    right = reflect(top.T)
    del top
    _put(band, start, stop, right.triangle.T)
    back = right.mixing @ right.vectors.T  # T Zᵀ
    panel = np.empty((size - stop, min(width, size - stop)))
    for first in range(stop, size, width):
        rows = slice(first, min(first + width, size))
        part = matrix.read(rows, slice(stop, size))
        part -= left.vectors[rows.start - start : rows.stop - start] @ products
        part -= (part @ right.vectors) @ back
        matrix.write(rows, slice(stop, size), part)
        panel[rows.start - stop : rows.stop - stop] = part[:, : panel.shape[1]]
        steps.advance(6 * part.size * width)
    return panel


def _put(band: Band, row: int, column: int, block: Matrix) -> None:
    """Copy the entries of a triangular block inside the band. The others are zero."""
    for index, values in enumerate(block):
        first = max(0, row + index - column)  # on and above the diagonal
        last = min(len(values), row + index + band.width - column + 1)
        band.entries[row + index, column + first : column + last] = values[first:last]
