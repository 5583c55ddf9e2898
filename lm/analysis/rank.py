"""Numerical rank of T × V matrices, as of log-probabilities, in a quarter of their memory, or less.

TSQR (Demmel et al. 2012) reduces the matrix to a triangle of the smaller side as blocks of rows arrive. The
triangle is reduced to a band, and the band to a bidiagonal matrix. All steps are orthogonal transformations
in float64, because the threshold is a few ε·σ_max. A matrix with T < V is first written to disk and then
processed by columns.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from lm.analysis.bidiagonal import HALVINGS, bidiagonal_values, to_bidiagonal
from lm.analysis.factor import merge, to_band
from lm.analysis.scratch import ITEM, Matrix, ScratchMatrix
from lm.analysis.spectrum import RankResult
from lm.console.tables import Table
from lm.disk.storage import temporary_folder
from lm.errors import DataError, StorageError
from lm.heads.head import Head
from lm.language.corpora.split_files import add_ids
from lm.language.trained import TrainedLm, weights_sha256
from lm.language.windows import Ids
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
        DataError: an empty matrix, or an entry that is not finite.
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
            raise DataError(
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


@dataclass(frozen=True)
class RunRank:
    """Numerical rank of a run on a text by every threshold.

    ``ceiling`` is the largest possible rank of the head, None if nothing bounds it. ``spectrum`` is the file
    of the singular values, which may be ``kept_from_before``.
    """

    rank: int
    ranks: Mapping[str, int]
    thresholds: Mapping[str, float]
    dtype: str
    tokens: int
    vocabulary: int
    weights_sha256: str
    ids_sha256: str
    full_rank: int
    largest_singular_value: float
    smallest_singular_value: float
    head: str
    embedding_size: int
    ceiling: int | None
    spectrum: str | None
    kept_from_before: bool


def rank_of_run(
    trained: TrainedLm,
    ids: Ids,
    progress: OnProgress = no_progress,
    spectrum: Path | None = None,
    scratch: Path | None = None,
    checkpoint: str = "",
    fingerprint: str = "",
) -> RunRank:
    """Measure the rank of a run on a text.

    ``spectrum`` names the ``.npz`` that stores the singular values, see :meth:`RankResult.load`. Values of an
    existing file of the same weights and tokens are reused. A file of other weights is replaced. A file of
    other tokens stays, and the new name gets six digits of the hash of its tokens. The file also names the
    ``checkpoint`` and its ``fingerprint``, see :class:`RankResult`.
    """
    vocab = len(trained.codec.vocabulary)
    if not len(ids):
        raise DataError("the text has no tokens to measure the rank on; name a longer text")
    digest = hashlib.sha256()
    add_ids(digest, ids)
    hashes = weights_sha256(trained.model), digest.hexdigest()
    spectrum, kept = (None, None) if spectrum is None else _place(spectrum, *hashes)
    source = checkpoint, fingerprint
    if kept is None:
        rows = FactorPlan.of(len(ids), vocab).memory // (16 * vocab * ITEM)  # a sixteenth of the memory
        blocks = trained.log_probs(ids, rows=max(1, min(256, rows)))
        what = "log-probabilities of token"
        measured = matrix_rank(blocks, len(ids), vocab, progress, scratch, what=what)
        result = RankResult(measured.singular_values, measured.shape, *hashes, *source)
    else:
        result = replace(kept, checkpoint=checkpoint, fingerprint=fingerprint)
    if spectrum is not None and (kept is None or (kept.checkpoint, kept.fingerprint) != source):
        result.save(spectrum)
    values, head = result.singular_values, trained.model.head
    return RunRank(
        rank=result.rank,
        ranks=result.ranks,
        thresholds=result.thresholds,
        dtype=result.dtype,
        tokens=result.shape[0],
        vocabulary=result.shape[1],
        weights_sha256=result.weights_sha256,
        ids_sha256=result.ids_sha256,
        full_rank=len(values),
        largest_singular_value=float(values[0]),
        smallest_singular_value=float(values[-1]),
        head=head.config.kind,
        embedding_size=head.size,
        ceiling=rank_ceiling(head, result.shape),
        spectrum=None if spectrum is None else str(spectrum),
        kept_from_before=kept is not None,
    )


def rank_ceiling(head: Head, shape: tuple[int, int]) -> int | None:
    """Largest rank of log-probabilities (N, V) that a head can have; None if it mixes probabilities.

    An affine product of contexts of E dimensions has rank E + 1, its bias one more (Yang et al. 2018, §2.2).
    """
    single = head.config.components == 1 and head.row.link == "exp"
    if not ((head.row.linear or single) and head.output.one_pass):
        return None
    width = head.size if head.projection is None else min(head.size, head.hidden_size)
    bounds = [width + 1 + (head.bias is not None), *shape]
    if single and head.config.context_activation == "none" and not head.config.facet_layers:
        bounds.append(head.hidden_size + 2)  # contexts and bias are affine in the states
    return min(bounds)


def _place(path: Path, weights: str, ids: str) -> tuple[Path, RankResult | None]:
    """Path of the spectrum for weights and tokens given by their hashes, and the spectrum if it exists."""
    for place in (path, path.with_name(f"{path.stem}.{ids[:6]}{path.suffix}")):
        kept = None
        with suppress(StorageError):  # missing, or damaged and replaced
            kept = RankResult.load(place)
        if kept is None or kept.ids_sha256 == ids:
            break
    found = kept is not None and (kept.weights_sha256, kept.ids_sha256) == (weights, ids)
    return place, kept if found else None


def rank_tables(results: Mapping[str, RunRank]) -> list[Table | str]:
    """Table with a row per run, by name."""
    rows = [
        {
            "run": name,
            "head": found.head,
            "rank": found.rank,
            "ceiling": found.ceiling,
            "of": found.full_rank,
            "rank, ε of float32": found.ranks["roundoff_float32"],
            "rank, NumPy's rule": found.ranks["numpy_float64"],
            "tokens": found.tokens,
            "words": found.vocabulary,
            "dtype": found.dtype,
        }
        for name, found in results.items()
    ]
    kept = [name for name, found in results.items() if found.kept_from_before]
    return [
        Table("Numerical rank of the log-probability matrix", rows),
        "rank: singular values above ½·√(T + V + 1)·σ_max·ε, ε of float64; "
        "ceiling: largest possible rank of the head",
        *([f"reused results: {', '.join(kept)}"] if kept else []),
    ]
