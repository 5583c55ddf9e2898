"""Rank of the log-probabilities of a run: measured once, stored, compared with what its head can have."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lm.console.tables import Table
from lm.disk.storage import make_folder
from lm.engine.device import flushed_denormals
from lm.errors import DataError, StorageError
from lm.heads.head import Head
from lm.runs.measured import Measured, NamedText, measurement
from lm.runs.opened import Opened, naming
from lm.spectra.rank import FactorPlan, matrix_rank
from lm.spectra.scratch import ITEM
from lm.spectra.spectrum import KEPT, RankResult
from lm.steps import OnProgress, no_progress


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


@dataclass(frozen=True)
class Predictions:
    """Log-probabilities of the words by a head, and the hashes of its model's weights and of the text's ids.

    ``blocks`` yields them for a number of rows as (n, V) of float64, N ``rows`` in all.
    """

    head: Head
    rows: int
    words: int
    blocks: Callable[[int], Iterator[Tensor]]
    weights_sha256: str
    ids_sha256: str


@flushed_denormals()
def measure_rank(
    opened: Opened[Any],
    text: NamedText,
    name: str,
    predictions: Predictions,
    progress: OnProgress = no_progress,
) -> Measured[RunRank]:
    """Measure the rank of a run's predictions of a text. The singular values are kept in RUN/analysis.

    ``name`` names the text in the name of the stored file. ``progress`` is called with the share of the
    factorisation.

    Raises:
        DivergenceError: log-probabilities that are not finite.
        StorageError: a full disk.
    """
    make_folder(opened.run / KEPT)
    with naming(opened):
        found = rank_of_predictions(
            predictions,
            progress,
            spectrum=opened.run / KEPT / f"rank-{name}.npz",
            checkpoint=opened.checkpoint,
            fingerprint=opened.fingerprint or "",
        )
    return measurement(opened, text, found)


def rank_of_predictions(
    found: Predictions,
    progress: OnProgress = no_progress,
    spectrum: Path | None = None,
    scratch: Path | None = None,
    checkpoint: str = "",
    fingerprint: str = "",
) -> RunRank:
    """Measure the rank of a run's log-probabilities. DataError if there are none.

    ``spectrum`` names the ``.npz`` that stores the singular values, see :meth:`RankResult.load`. Values of an
    existing file of the same weights and tokens are reused. A file of other weights is replaced. A file of
    other tokens stays, and the new name gets six digits of the hash of its tokens. The file also names the
    ``checkpoint`` and its ``fingerprint``, see :class:`RankResult`.
    """
    if not found.rows:
        raise DataError("the text has no tokens to measure the rank on; name a longer text")
    hashes = found.weights_sha256, found.ids_sha256
    spectrum, kept = (None, None) if spectrum is None else _place(spectrum, *hashes)
    source = checkpoint, fingerprint
    if kept is None:
        rows = FactorPlan.of(found.rows, found.words).memory // (16 * found.words * ITEM)  # a sixteenth of it
        blocks = found.blocks(max(1, min(256, rows)))
        what = "log-probabilities of token"
        measured = matrix_rank(blocks, found.rows, found.words, progress, scratch, what=what)
        result = RankResult(measured.singular_values, measured.shape, *hashes, *source)
    else:
        result = replace(kept, checkpoint=checkpoint, fingerprint=fingerprint)
    if spectrum is not None and (kept is None or (kept.checkpoint, kept.fingerprint) != source):
        result.save(spectrum)
    values, head = result.singular_values, found.head
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
