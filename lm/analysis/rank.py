"""Numerical rank of the T × V matrix of log-probabilities, in memory that does not grow with T·V.

TSQR (Demmel et al. 2012) reduces the matrix to a triangle of the smaller side as blocks of rows arrive; the
triangle is reduced to a band and the band to a bidiagonal matrix. All of it is in float64 and by orthogonal
transformations, because the threshold is a few ε·σ_max. A matrix with T < V is written to disk first, and its
columns take the part of rows.
"""

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from lm.analysis.bidiagonal import HALVINGS, bidiagonal_values, to_bidiagonal
from lm.analysis.factor import merge, to_band
from lm.analysis.scratch import ITEM, Matrix, ScratchMatrix
from lm.analysis.spectrum import RankResult
from lm.console.tables import Table
from lm.errors import DataError, StorageError
from lm.language.shards import add_ids
from lm.language.trained import weights_sha256
from lm.stop import Poll, Progress, Steps, no_poll, no_progress

if TYPE_CHECKING:
    from lm.language.trained import TrainedLm
    from lm.language.windows import Ids

FLOOR = 32 << 20  # bytes that a factorisation may always use; no bound is kept for smaller matrices
DENSE = 1024  # triangles up to this size are left to LAPACK, where memory allows
LINEAR_HEADS = ("softmax", "moc")  # whose logits are a product of rank E


@dataclass(frozen=True)
class Plan:
    """How a (T, V) matrix is factorised in a given memory.

    ``width``: of the panels, and of the band. ``rows``: of one merge into the triangle.
    """

    longer: int
    shorter: int
    memory: int
    dense: int = DENSE

    @classmethod
    def of(cls, tokens: int, vocab: int, memory: int | None = None) -> "Plan":
        """With a quarter of the matrix for memory, or ``memory`` bytes, but not less than ``FLOOR``."""
        if memory is None:
            memory = max(tokens * vocab * ITEM // 4, FLOOR)
        return cls(max(tokens, vocab), min(tokens, vocab), memory)

    @property
    def width(self) -> int:
        """The band reduction holds at most 16 panels of n·w numbers."""
        return max(1, min(128, self.shorter, self.memory // ITEM // (16 * self.shorter)))

    @property
    def rows(self) -> int:
        """A merge holds the rows, of a transposed matrix a copy, and a few panels."""
        room = self.memory // ITEM // (5 * self.shorter)
        return max(1, min(room, 4 * self.shorter, self.longer))

    @property
    def is_dense(self) -> bool:
        """Whether LAPACK gets the triangle: with its copies it fits, and it is small."""
        return self.shorter <= self.dense and 4 * self.shorter**2 * ITEM <= self.memory

    @property
    def disk(self) -> int:
        """Bytes of temporary files for the triangle; the matrix itself comes on top where T < V."""
        return self.shorter**2 * ITEM

    @property
    def work(self) -> int:
        """What the steps of the factorisation add up to, in operations of a fast product, roughly."""
        size = self.shorter
        merges = 2 * self.longer * size * (size + self.width)
        if self.is_dense:
            return merges
        return merges + 8 * size**3 // 3 + 80 * size * size * self.width + HALVINGS * 200 * size * size


def log_prob_rank(
    blocks: Iterator[ArrayLike],
    tokens: int,
    vocab: int,
    poll: Poll = no_poll,
    progress: Progress = no_progress,
    scratch: Path | None = None,
    plan: Plan | None = None,
) -> RankResult:
    """Singular values of a matrix that arrives in blocks of rows.

    At most a quarter of the matrix (T·V·8/4 bytes, but 32 MiB are always allowed) is in memory, for every T
    and V. That counts everything that is allocated here, but not the caller's blocks and the interpreter.
    On disk are up to min(T, V)² · 8 bytes and, if T < V, T·V·8 more.

    Args:
        blocks: (n, V) of float64, T rows in all.
        tokens: T.  vocab: V.
        poll: called many times, at intervals of at most seconds.
        progress: told (done, total) in steps of computation.
        scratch: folder for temporary files, which no-one else sees; by default the system's, which should
            not be in memory.
        plan: how much memory to use, and where LAPACK takes over.

    Raises:
        DataError: an empty matrix, or an entry that is not finite.
        StorageError: no room for the temporary files.
        ValueError: blocks of another type or shape.
    """
    if not tokens or not vocab:
        raise DataError("a matrix without rows or columns has no rank; name a longer text")
    plan = plan or Plan.of(tokens, vocab)
    folder = scratch or Path(tempfile.gettempdir())
    steps = Steps(plan.work, poll, progress)
    with ScratchMatrix(plan.shorter, plan.shorter, folder) as triangle:
        if tokens >= vocab:
            _triangle_of_rows(_checked(blocks, tokens, vocab), triangle, plan, steps)
        else:
            with ScratchMatrix(tokens, vocab, folder) as matrix:
                _triangle_of_columns(_checked(blocks, tokens, vocab), matrix, triangle, plan, steps)
        if plan.is_dense:
            whole = triangle.read(slice(None), slice(None))
            values = np.linalg.svd(whole, compute_uv=False).astype(np.float64, copy=False)
        else:
            diagonal, above = to_bidiagonal(to_band(triangle, plan.width, steps), steps)
            values = bidiagonal_values(diagonal, above, steps)
    return RankResult(values, (tokens, vocab))


def _checked(blocks: Iterator[ArrayLike], tokens: int, vocab: int) -> Iterator[Matrix]:
    """The blocks as arrays; raises where they are not the matrix that was announced."""
    rows = 0
    for block in blocks:
        values = np.asarray(block.cpu() if hasattr(block, "cpu") else block)
        if values.dtype != np.float64 or values.ndim != 2 or values.shape[1] != vocab:
            raise ValueError(f"blocks of (n, {vocab}) float64 are needed, not {values.shape} {values.dtype}")
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            raise DataError(
                f"log-probabilities of token {rows + int(finite.argmin()) + 1} are not finite: "
                "the model has diverged, or rules words out"
            )
        rows += len(values)
        yield values
    if rows != tokens:
        raise ValueError(f"{rows} rows came, not {tokens}")


def _triangle_of_rows(blocks: Iterator[Matrix], triangle: ScratchMatrix, plan: Plan, steps: Steps) -> None:
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
    blocks: Iterator[Matrix], matrix: ScratchMatrix, triangle: ScratchMatrix, plan: Plan, steps: Steps
) -> None:
    row = 0
    for block in blocks:
        steps.advance(0)
        matrix.write(slice(row, row + len(block)), slice(None), block)
        row += len(block)
    for left in range(0, plan.longer, plan.rows):
        part = matrix.read(slice(None), slice(left, left + plan.rows))
        merge(triangle, np.ascontiguousarray(part.T), plan.width, steps)


def rank_of_run(
    trained: "TrainedLm",
    ids: "Ids",
    poll: Poll = no_poll,
    progress: Progress = no_progress,
    spectrum: Path | None = None,
    scratch: Path | None = None,
) -> dict[str, Any]:
    """The rank of a run on a text.

    ``spectrum`` names the ``.npz`` that keeps the singular values; see :meth:`RankResult.load`. One that is
    there and of the same weights and tokens is taken as it is (``kept_from_before``), one of other weights is
    replaced, and beside one of other tokens the new one gets six digits of the hash of its own.
    """
    vocab = len(trained.codec.vocabulary)
    if not len(ids):
        raise DataError("a text without tokens has no rank; name a longer one")
    digest = hashlib.sha256()
    add_ids(digest, ids)
    hashes = weights_sha256(trained.model), digest.hexdigest()
    spectrum, kept = (None, None) if spectrum is None else _place(spectrum, *hashes)
    if kept is None:
        rows = Plan.of(len(ids), vocab).memory // (16 * vocab * ITEM)  # of a block: a sixteenth of the memory
        blocks = trained.log_probs(ids, poll=poll, rows=max(1, min(256, rows)))
        measured = log_prob_rank(iter(blocks), len(ids), vocab, poll, progress, scratch)
        result = RankResult(measured.singular_values, measured.shape, *hashes)
        if spectrum is not None:
            result.save(spectrum)
    else:
        result = kept
    head = trained.model.head
    bias = head.bias is not None
    linear = head.config.kind in LINEAR_HEADS and head.output.one_pass
    width = head.size if head.projection is None else min(head.size, head.hidden_size)
    ceiling = min(width + 1 + bias, *result.shape) if linear else None
    return rank_report(result) | {
        "head": head.config.kind,
        "embedding_size": head.size,
        "ceiling": ceiling,
        "spectrum": None if spectrum is None else str(spectrum),
        "kept_from_before": kept is not None,
    }


def _place(path: Path, weights: str, ids: str) -> tuple[Path, RankResult | None]:
    """Where the spectrum of these weights and tokens belongs, and itself where it is there."""
    for place in (path, path.with_name(f"{path.stem}.{ids[:6]}{path.suffix}")):
        kept = None
        with suppress(StorageError):  # there is none, or a damaged one, which is replaced
            kept = RankResult.load(place)
        if kept is None or kept.ids_sha256 == ids:
            break
    found = kept is not None and (kept.weights_sha256, kept.ids_sha256) == (weights, ids)
    return place, kept if found else None


def rank_report(result: RankResult) -> dict[str, Any]:
    """The ranks by every threshold, and what they were measured on."""
    values, largest = result.singular_values, float(result.singular_values[0])
    return {
        "rank": result.rank,
        "ranks": result.ranks,
        "thresholds": result.thresholds,
        "dtype": result.dtype,
        "tokens": result.shape[0],
        "vocabulary": result.shape[1],
        "weights_sha256": result.weights_sha256,
        "ids_sha256": result.ids_sha256,
        "full_rank": len(values),
        "largest_singular_value": largest,
        "smallest_singular_value": float(values[-1]),
    }


def rank_tables(results: dict[str, dict[str, Any]]) -> list[Table | str]:
    """A row for each run, by name."""
    rows = [
        {
            "run": name,
            "head": result["head"],
            "rank": result["rank"],
            "ceiling": result["ceiling"],
            "of": result["full_rank"],
            "rank, ε of float32": result["ranks"]["roundoff_float32"],
            "rank, NumPy's rule": result["ranks"]["numpy_float64"],
            "tokens": result["tokens"],
            "words": result["vocabulary"],
            "dtype": result["dtype"],
        }
        for name, result in results.items()
    ]
    kept = [name for name, result in results.items() if result["kept_from_before"]]
    return [
        Table("Numerical rank of the log-probability matrix", rows),
        "rank: singular values above ½·√(T + V + 1)·σ_max·ε, ε of float64; "
        "ceiling: the most that the head can have",
        *([f"kept from before: {', '.join(kept)}"] if kept else []),
    ]
