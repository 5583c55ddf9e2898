"""Updates from the shards of a batch, bit-identical for any number of processes.

In an update, the processes exchange gradients as flat buffers, and each sends one vector of float64. It holds
its :class:`~lm.engine.agreement.Standing`, and objective, nll and tokens of its shards. All processes decide
from the same numbers.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Generic

import torch
from torch import Tensor

from lm.engine.agreement import Agreement
from lm.engine.config import TrainConfig
from lm.engine.update import BatchT, Sums, Updater
from lm.parallel.group import Group
from lm.parallel.reduction import ExactSum
from lm.parallel.shards import nodes_within, random_seed, shards_of, tree_sum

DIVISOR = 1024  # of the objective in the backward pass: a power of 2, which changes no bit of a gradient


class ShardedUpdater(Generic[BatchT]):
    """Computes gradients as sums over shards, for the model of an :class:`~lm.engine.update.Updater`."""

    def __init__(
        self,
        updater: Updater[BatchT],
        cut: Callable[[BatchT, int, int], BatchT | None],
        train: TrainConfig,
        group: Group,
        agreement: Agreement,
    ) -> None:
        self._updater, self._cut, self._group, self._agreement = updater, cut, group, agreement
        self._seed, self._shards = train.seed, train.shards
        self._own = shards_of(group.rank, group.size, train.shards)
        self._reduced = ExactSum(group, train.shards) if train.reduction == "exact" else self._summed

    def gradients(self, batches: Sequence[BatchT], update: int) -> Sums:
        """Sums over all shards of all processes; the model holds gradients of objective / ``divisor``.

        ``update`` counts from 1. This settles the agreement anew. WorkerError if another process is lost.
        """
        numbers: dict[int, list[float]] = {}  # objective, nll, tokens and lr_scale by shard

        def leaf(node: tuple[int, int]) -> Tensor | None:
            first, last = node
            if last - first > 1:
                return None
            gradient, numbers[first] = self._shard(batches, first, update)
            return gradient

        mine = [tree_sum(node, leaf, Tensor.add_) for node in nodes_within(self._own, (0, self._shards))]
        torch.manual_seed(random_seed(self._seed, update, self._shards))
        self._updater.put(self._reduced(mine))
        objective, nll, tokens, scale = self._exchanged([numbers[shard] for shard in self._own])
        return self._updater.sums((objective, nll, int(tokens)), DIVISOR, scale)

    def _shard(self, batches: Sequence[BatchT], shard: int, update: int) -> tuple[Tensor, list[float]]:
        """Flat gradient of a shard of several batches, its sums and mean ``lr_scale``; seeded by shard."""
        torch.manual_seed(random_seed(self._seed, update, shard))
        sums = torch.zeros(3, dtype=torch.float64)
        scales: list[float] = []
        for batch in batches:
            rows = self._cut(batch, shard, self._shards)
            if rows is None:
                continue
            loss = self._updater.forward(rows)
            (loss.objective / DIVISOR).backward()
            objective, nll = float(loss.objective.detach()), float(loss.nll)
            sums += torch.tensor([objective, nll, loss.tokens], dtype=torch.float64)
            scales.append(loss.lr_scale)
        flat = self._updater.flat()
        self._updater.clear()
        return flat, [*sums.tolist(), statistics.fmean(scales or [1.0])]

    def _summed(self, mine: list[Tensor]) -> Tensor:
        """Sum over all shards up to rounding, given the sums of this process's nodes."""
        total = mine[0]
        for tensor in mine[1:]:
            total.add_(tensor)
        self._group.sum_(total)
        return total

    def _exchanged(self, numbers: list[list[float]]) -> tuple[float, float, float, float]:
        """Exchange the numbers of shards and the status.

        Returns objective, nll and tokens of all shards, and the lr_scale of the first, which is never empty.
        """
        own = self._agreement.status()
        vector = torch.tensor([*own, *(value for shard in numbers for value in shard)], dtype=torch.float64)
        every = self._group.gather_rows(vector)
        self._agreement.settle([other[: len(own)].tolist() for other in every])
        shards = torch.cat([other[len(own) :] for other in every]).view(-1, 4).tolist()
        objective, nll, tokens, _ = (_sum(column) for column in zip(*shards, strict=True))
        return objective, nll, tokens, shards[0][3]


def _sum(numbers: Sequence[float]) -> float:
    """Exact sum; NaN if a number is not finite."""
    return math.fsum(numbers) if all(map(math.isfinite, numbers)) else math.nan
