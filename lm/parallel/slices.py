"""Work on many items, shared by the processes of a group.

Each process works on a contiguous slice of the items. Every process gets the results of all slices, joined by
index, so that the code around is that of one process. An error on any rank is raised on all.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

from lm.disk.jsonfile import JSON
from lm.parallel.group import Group
from lm.parallel.shards import nodes_within, slice_of, tree_sum

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
LEAVES = 64  # most leaves of the tree of a sum, regardless of the number of processes


def own_slice(group: Group, count: int) -> range:
    """Indices of this process's slice of ``count`` items."""
    return range(count)[slice_of(count, group.rank, group.size)]


def joined(group: Group, count: int, work: Callable[[range], Iterable[JSON]]) -> list[Any]:
    """The results of ``work`` on every rank's slice of ``count`` items, one after the other.

    ``work`` gets the indices of the slice.
    """
    own = own_slice(group, count)
    return [*chain.from_iterable(group.gather(group.every(lambda: [*work(own)])))]


def joined_rows(group: Group, count: int, work: Callable[[range], "Tensor"]) -> "Tensor":
    """Like :func:`joined`, where the results are the rows of a tensor."""
    import torch

    own = own_slice(group, count)
    return torch.cat(group.gather_rows(group.every(lambda: work(own))))


def summed(
    group: Group,
    count: int,
    blocks: Callable[[range], Iterator[T]],
    total: Callable[[Iterator[T]], Sequence["Tensor"]],
    shapes: Sequence[Sequence[int]],
) -> list["Tensor"]:
    """Sums over ``count`` blocks, bit-identical for every number of processes.

    Args:
        blocks: the blocks of a range of numbers, in order; called once.
        total: sums over neighbouring blocks, in float64.
        shapes: of these sums.
    """
    import torch
    from torch import Tensor

    leaves = max(1, min(LEAVES, count))
    starts = [slice_of(count, leaf, leaves).start for leaf in range(leaves)] + [count]
    shares = [range(leaves)[slice_of(leaves, rank, group.size)] for rank in range(group.size)]
    nodes = [[*nodes_within(share, (0, leaves))] for share in shares]

    def work() -> Tensor:
        own = shares[group.rank]
        stream = blocks(range(starts[own.start], starts[own.stop]))

        def leaf(node: tuple[int, int]) -> Tensor | None:
            first, last = node
            if last - first > 1:
                return None
            sums = total(islice(stream, starts[last] - starts[first]))
            return torch.cat([tensor.double().cpu().flatten() for tensor in sums])

        sums = [tree_sum(node, leaf, Tensor.add_) for node in nodes[group.rank]]
        return torch.stack(sums) if sums else torch.zeros(0, sum(sizes), dtype=torch.float64)

    sizes = [math.prod(shape) for shape in shapes]
    every = torch.cat(group.gather_rows(group.every(work)))
    known = dict(zip(chain.from_iterable(nodes), every, strict=True))
    whole: Tensor = tree_sum((0, leaves), known.get, Tensor.add_)
    return [flat.view(tuple(shape)) for flat, shape in zip(whole.split(sizes), shapes, strict=True)]
