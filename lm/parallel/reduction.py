"""Sum of a vector over shards, bit-identical for any number of processes.

Every process gets its slice of all vectors, adds them as one balanced tree, and sends the sum to the others.
That sends as many bytes as a ring: 2 (N - 1) / N of the vector from each of N processes.
"""

from torch import Tensor

from lm.parallel.group import Group
from lm.parallel.shards import plan, slice_of, tree_sum


class ExactSum:
    """Sums vectors of one length over all shards of a group."""

    def __init__(self, group: Group, shards: int) -> None:
        self._group, self._shards = group, shards
        self._plan = plan(group.size, shards)
        self._rows: Tensor | None = None  # of other processes, kept because new memory takes time

    def __call__(self, mine: list[Tensor]) -> Tensor:
        """Sum over all shards, from the sums of this process's nodes, whose memory it uses."""
        group, whole = self._group, mine[0]
        slices = [slice_of(len(whole), rank, group.size) for rank in range(group.size)]
        own, others = slices[group.rank], [rank for rank in range(group.size) if rank != group.rank]
        senders = [rank for rank, _ in self._plan if rank != group.rank]  # a rank of several nodes repeats
        if self._rows is None:
            self._rows = whole.new_empty(len(senders), len(whole[own]))
        # Messages have no tags: both sides take the nodes of a rank in the order of the plan.
        group.send_and_receive(
            [(rank, vector[slices[rank]]) for vector in mine for rank in others],
            list(zip(senders, self._rows, strict=True)),
        )
        kept, came = (vector[own] for vector in mine), iter(self._rows)
        known = {node: next(kept if rank == group.rank else came) for rank, node in self._plan}
        # The sum overwrites the slice of `mine` and the rows, which are not read again.
        whole[own] = tree_sum((0, self._shards), known.get, Tensor.add_)
        group.send_and_receive(
            [(rank, whole[own]) for rank in others], [(rank, whole[slices[rank]]) for rank in others]
        )
        return whole
