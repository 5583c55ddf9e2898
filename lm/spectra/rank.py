"""Numerical rank of T × V matrices, as of log-probabilities, in a quarter of their memory, or less.

TSQR (Demmel et al. 2012) reduces the matrix to a triangle of the smaller side as blocks of rows arrive. The
triangle is reduced to a band, and the band to a bidiagonal matrix. All steps are orthogonal transformations
in float64, because the threshold is a few ε·σ_max. A matrix with T < V is first written to disk and then
processed by columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from lm.disk.storage import temporary_folder
from lm.errors import DataError, DivergenceError
from lm.spectra.bidiagonal import HALVINGS, bidiagonal_values, to_bidiagonal
from lm.spectra.factor import merge, to_band
from lm.spectra.scratch import ITEM, Matrix, ScratchMatrix
from lm.spectra.spectrum import RankResult
from lm.steps import OnProgress, Steps, no_progress

FLOOR = 32 << 20  # bytes that a factorisation may always use, even for small matrices
# Largest size of triangles for LAPACK, if memory allows. Larger ones stay on disk, because a triangle exceeds
# a quarter of a square matrix. The Gram matrix would be as large, and lose values below √ε·σ_max.
DENSE = 1024


@dataclass(frozen=True)
class FactorPlan:
    """Plan of the factorisation of a (T, V) matrix in a given memory.

    ``width`` is that of the panels and of the band. ``rows`` is the number of rows per merge into the
    triangle.
    """

    longer: int
    shorter: int
    memory: int
    dense: int = DENSE

    @classmethod
    def of(cls, tokens: int, vocab: int, memory: int | None = None) -> "FactorPlan":
        """Plan with ``memory`` bytes, by default a quarter of the matrix, and at least ``FLOOR``."""
        if memory is None:
            memory = max(tokens * vocab * ITEM // 4, FLOOR)
        return cls(max(tokens, vocab), min(tokens, vocab), memory)

    @property
    def width(self) -> int:
        """Width of panels, such that the 16 panels of n·w numbers of the band reduction fit in memory."""
        return max(1, min(128, self.shorter, self.memory // ITEM // (16 * self.shorter)))

    @property
    def rows(self) -> int:
        """Rows per merge, which holds the rows, a copy if transposed, and a few panels."""
        room = self.memory // ITEM // (5 * self.shorter)
        return max(1, min(room, 4 * self.shorter, self.longer))

    @property
    def is_dense(self) -> bool:
        """True if LAPACK factorises the triangle, because it is small and fits with its copies."""
        return self.shorter <= self.dense and 4 * self.shorter**2 * ITEM <= self.memory

    @property
    def work(self) -> int:
        """Approximate total of the steps of the factorisation, in operations of a fast product."""
        size = self.shorter
        merges = 2 * self.longer * size * (size + self.width)
        if self.is_dense:
            return merges
        return merges + 8 * size**3 // 3 + 80 * size * size * self.width + HALVINGS * 200 * size * size


def matrix_rank(
    blocks: Iterator[ArrayLike],
    rows: int,
    columns: int,
    progress: OnProgress = no_progress,
    scratch: Path | None = None,
    plan: FactorPlan | None = None,
    what: str = "entries of row",
) -> RankResult:
    """Compute the singular values of a matrix that arrives in blocks of rows.

    Memory is at most a quarter of the matrix (T·V·8/4 bytes), or 32 MiB if that is more. It includes all
    allocations here, but not the caller's blocks and the interpreter. The disk holds up to min(T, V)² · 8
    bytes and, if T < V, T·V·8 more.

    Args:
        blocks: (n, V) of float64, T rows in all.
        rows, columns: T and V.
        scratch: folder for unnamed temporary files, by default the system's, which should not be in memory.
        plan: memory to use, and largest triangle for LAPACK.
        what: the entries of a row in errors, before its number.

    Raises:
        DataError: an empty matrix.
        DivergenceError: an entry that is not finite.
        StorageError: no room for the temporary files.
        ValueError: blocks of another type or shape.
    """
    if not rows or not columns:
        raise DataError("the matrix has no rows or no columns, so no rank; name a longer text")
    plan = plan or FactorPlan.of(rows, columns)
    checked = _checked(blocks, rows, columns, what)
    folder = scratch or temporary_folder()
    steps = Steps(plan.work, progress)
    with ScratchMatrix(plan.shorter, plan.shorter, folder) as triangle:
        if rows >= columns:
            _triangle_of_rows(checked, triangle, plan, steps)
        else:
            with ScratchMatrix(rows, columns, folder) as matrix:
                _triangle_of_columns(checked, matrix, triangle, plan, steps)
        if plan.is_dense:
            whole = triangle.read(slice(None), slice(None))
            values = np.linalg.svd(whole, compute_uv=False).astype(np.float64, copy=False)
        else:
            diagonal, above = to_bidiagonal(to_band(triangle, plan.width, steps), steps)
            values = bidiagonal_values(diagonal, above, steps)
    return RankResult(values, (rows, columns))


def _checked(blocks: Iterator[ArrayLike], rows: int, columns: int, what: str) -> Iterator[Matrix]:
    """Yield the blocks as arrays. Raises if they do not form a finite (rows, columns) matrix."""
    seen = 0
    for block in blocks:
        values = np.asarray(block.cpu() if hasattr(block, "cpu") else block)
        if values.dtype != np.float64 or values.ndim != 2 or values.shape[1] != columns:
            raise ValueError(f"blocks must be (n, {columns}) float64, got {values.shape} {values.dtype}")
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            raise DivergenceError(
                f"{what} {seen + int(finite.argmin()) + 1} are not finite: "
                "the model has diverged, or gives words probability 0; choose another checkpoint"
            )
        seen += len(values)
        yield values
    if seen != rows:
        raise ValueError(f"got {seen} rows, expected {rows}")


def _triangle_of_rows(
    blocks: Iterator[Matrix], triangle: ScratchMatrix, plan: FactorPlan, steps: Steps
) -> None:
    buffer, filled = np.empty((plan.rows, plan.shorter)), 0
    for block in blocks:
        steps.advance(0)
        while len(block):
            taken = min(len(block), plan.rows - filled)
            buffer[filled : filled + taken] = block[:taken]
            block, filled = block[taken:], filled + taken
            if filled == plan.rows:
                merge(triangle, buffer, plan.width, steps)
                filled = 0
    if filled:
        merge(triangle, buffer[:filled], plan.width, steps)


def _triangle_of_columns(
    blocks: Iterator[Matrix], matrix: ScratchMatrix, triangle: ScratchMatrix, plan: FactorPlan, steps: Steps
) -> None:
    row = 0
    for block in blocks:
        steps.advance(0)
        matrix.write(slice(row, row + len(block)), slice(None), block)
        row += len(block)
    for left in range(0, plan.longer, plan.rows):
        part = matrix.read(slice(None), slice(left, left + plan.rows))
        merge(triangle, np.ascontiguousarray(part.T), plan.width, steps)
