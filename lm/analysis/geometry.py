"""Anisotropy and effective ranks of states and contexts, and the rank of histories by futures.

*Anisotropy* is the mean cosine of two states of different tokens (Ethayarajh 2019): 0 for directions that are
spread evenly. Contexts and output vectors have it over all pairs of rows, so that the K contexts of one token
are paired, too. The entropy of singular values is the logarithm of the effective rank (Roy & Vetterli 2007).

The *extended matrix* (Golowich et al. 2025, arXiv 2510.24966) has a row for every history, and a column for
every word after every future. Its entries are the logits of the word after history and future. The mean over
words is subtracted, because logits are known up to a constant. A head bounds the rank of one future only.

n histories · m futures · T tokens · V words.
"""

import copy
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lm.console.tables import Table
from lm.errors import DataError, DivergenceError
from lm.language.trained import TrainedLm
from lm.language.windows import Ids
from lm.spectra.spectrum import RankResult, effective_rank
from lm.steps import OnProgress, Steps, no_progress

HISTORY = 30  # tokens of a history, read from a zero state
LONGEST = 4  # tokens of the longest future; lengths from 1 to this take turns
ENERGY = 0.99  # share of the squared norm


@dataclass(frozen=True)
class RowGeometry:
    """Anisotropy, effective rank and entropy of the directions of rows of ``size`` numbers."""

    anisotropy: float
    effective_rank: float
    entropy: float
    size: int

    @classmethod
    def of(cls, rows: Tensor) -> "RowGeometry":
        """RowGeometry of rows (n, D). DivergenceError if one is not finite."""
        if not bool(rows.isfinite().all()):
            raise DivergenceError(
                "the vectors are not finite: the model has diverged; choose another checkpoint"
            )
        rank = effective_rank(torch.linalg.svdvals(torch.linalg.qr(rows, mode="r").R).cpu().numpy())
        return cls(anisotropy(rows), rank, math.log(max(1.0, rank)), rows.shape[1])


@dataclass(frozen=True)
class Geometry:
    """RowGeometry of the states and contexts of a text, and of the output matrix."""

    head: str
    components: int
    context_scale: float
    tokens: int
    states: RowGeometry
    contexts: RowGeometry
    output: RowGeometry


def geometry_of_run(trained: TrainedLm, ids: Ids) -> Geometry:
    """Anisotropy and effective rank of the states and contexts of a text, and those of the output matrix.

    DataError with fewer than two tokens.
    """
    if len(ids) < 2:
        raise DataError("a pair of states takes two tokens; name a longer text, or raise --limit")
    head = copy.deepcopy(trained.model.head).double()
    with torch.no_grad():
        layers = [hidden.map(lambda h: h[:, 0].double()) for hidden, _ in trained.readings(ids)]
        contexts = torch.cat([head.mixer.mixture(states).contexts.flatten(0, 1) for states in layers])
    return Geometry(
        head=head.config.kind,
        components=head.config.components,
        context_scale=float(head.scale),
        tokens=len(ids),
        states=RowGeometry.of(torch.cat([states.last for states in layers])),
        contexts=RowGeometry.of(contexts),
        output=RowGeometry.of(head.weight.detach()),
    )


def anisotropy(rows: Tensor) -> float:
    """Mean cosine of all pairs of different rows (n, D)."""
    units = rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    count = len(rows)
    return (float(units.sum(0).square().sum()) - float(units.square().sum())) / (count * (count - 1))


@dataclass(frozen=True)
class FutureRanks:
    """Ranks of the extended matrix of a number of futures besides the empty one.

    ``energy_rank`` is the number of singular values that have 99 % of the squared norm.
    """

    futures: int
    rank: int
    effective_rank: float
    energy_rank: int

    @classmethod
    def of(cls, futures: int, result: RankResult) -> "FutureRanks":
        """Ranks of a matrix of a number of futures, from its singular values."""
        squares = np.cumsum(result.singular_values**2)
        return cls(
            futures=futures,
            rank=result.rank,
            effective_rank=effective_rank(result.singular_values),
            energy_rank=int(np.searchsorted(squares, ENERGY * squares[-1]) + 1),
        )


@dataclass(frozen=True)
class HistoryRanks:
    """Ranks of the extended matrices of a model with a head of ``embedding_size`` = E."""

    head: str
    components: int
    context_scale: float
    embedding_size: int
    histories: int
    matrices: Sequence[FutureRanks]


@dataclass(frozen=True)
class ExtendedMatrix:
    """Centred log-probabilities of a model after histories and futures, in float64."""

    trained: TrainedLm
    histories: Tensor  # (HISTORY, n)
    futures: tuple[Tensor, ...]  # each (length,)

    @classmethod
    def of(cls, trained: TrainedLm, ids: Ids, histories: int, futures: int) -> "ExtendedMatrix":
        """Histories from the first half of a text and futures from the second, evenly spaced."""
        half = len(ids) // 2
        if half < max(histories + HISTORY, futures + LONGEST):
            raise DataError(
                f"{len(ids):,} tokens are too few for {histories} histories and {futures} futures;"
                " name a longer text"
            )
        tokens = torch.from_numpy(ids.astype(np.int64)).to(trained.device)
        first = np.linspace(0, half - HISTORY, histories).astype(int)
        read = torch.stack([tokens[start : start + HISTORY] for start in first.tolist()], 1)
        later = np.linspace(half, len(ids) - LONGEST, futures).astype(int).tolist()
        parts = [tokens[start : start + 1 + place % LONGEST] for place, start in enumerate(later)]
        return cls(trained, read, tuple(parts))

    @torch.no_grad()
    def blocks(self) -> Iterator[Tensor]:
        """Yield (V, n) for the empty future, and then for every future."""
        model = copy.deepcopy(self.trained.model).double()
        count = self.histories.shape[1]
        first = model(self.histories, model.initial_state(count))
        for future in (None, *self.futures):
            hidden = first.hidden
            if future is not None:
                hidden = model(future[:, None].expand(-1, count), first.state).hidden
            log_probs = model.head.log_probs(hidden.map(lambda layer: layer[-1]))
            yield (log_probs - log_probs.mean(1, keepdim=True)).T

    def measured(self, counts: Collection[int], progress: OnProgress = no_progress) -> list[FutureRanks]:
        """Ranks of the first m + 1 blocks for every number m of futures in ``counts``, in one pass.

        A triangle of at most n rows has the singular values of the blocks so far. So memory is that of a few
        blocks. DivergenceError for log-probabilities that are not finite.
        """
        found: list[FutureRanks] = []
        steps = Steps(len(self.futures) + 1, progress)
        rows, triangle = 0, None
        for futures, block in enumerate(self.blocks()):
            if not block.isfinite().all():
                raise DivergenceError(
                    f"log-probabilities after future {futures} are not finite: the model has diverged, or"
                    " gives words probability 0; choose another checkpoint"
                )
            rows += len(block)
            stacked = block if triangle is None else torch.cat((triangle, block))
            triangle = torch.linalg.qr(stacked, mode="r").R
            if futures in counts:
                values = torch.linalg.svdvals(triangle).cpu().numpy()
                found.append(FutureRanks.of(futures, RankResult(values, (rows, block.shape[1]))))
            steps.advance(1)
        return found


def histories_of_run(
    trained: TrainedLm, ids: Ids, histories: int, futures: int, progress: OnProgress = no_progress
) -> HistoryRanks:
    """Ranks of the matrix of histories by 0, 1, 4, 16 … futures, up to ``futures``."""
    matrix = ExtendedMatrix.of(trained, ids, histories, futures)
    counts = [0, *(4**power for power in range(20) if 4**power < futures), futures]
    head = trained.model.head
    return HistoryRanks(
        head=head.config.kind,
        components=head.config.components,
        context_scale=float(head.scale),
        embedding_size=head.size,
        histories=histories,
        matrices=matrix.measured(counts, progress),
    )


def geometry_tables(results: Mapping[str, Geometry]) -> list[Table | str]:
    """Table with a row per run, by name."""
    rows: list[dict[str, object]] = []
    for name, found in results.items():
        row = {"run": name, "head": found.head, "K": found.components, "factor": found.context_scale}
        for place in ("states", "contexts", "output"):
            spread: RowGeometry = getattr(found, place)
            row[f"anisotropy of {place}"] = spread.anisotropy
            row[f"effective rank of {place}"] = spread.effective_rank
        rows.append(row)
    return [
        Table("Geometry of states, contexts and output matrix", rows),
        "anisotropy: mean cosine of two rows; effective rank: exp of the entropy of the singular values",
    ]


def history_tables(results: Mapping[str, HistoryRanks]) -> list[Table | str]:
    """Table with a row per run and number of futures."""
    rows = [
        {
            "run": name,
            "head": found.head,
            "K": found.components,
            "E": found.embedding_size,
            "histories": found.histories,
            "futures": row.futures,
            "rank": row.rank,
            "effective rank": row.effective_rank,
            "rank of 99 %": row.energy_rank,
        }
        for name, found in results.items()
        for row in found.matrices
    ]
    return [
        Table("Rank of the matrix of histories by futures and words", rows),
        "futures: besides the empty one; rank of 99 %: singular values with 99 % of the squared norm",
    ]
