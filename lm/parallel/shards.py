"""Logical shards of a batch, and sums over shards in an order independent of the number of processes.

A batch is cut into S contiguous shards. Each of N processes computes S / N neighbouring shards. The sum over
all shards follows one balanced binary tree, so that equal shards give equal bits for every N.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from lm.errors import ConfigError

T = TypeVar("T")
Node = tuple[int, int]  # range of shards: first, and one past the last


def shards_of(rank: int, processes: int, shards: int) -> range:
    """Shards of a process; ConfigError unless the number of processes divides that of shards."""
    if shards % processes:
        fitting = [n for n in range(1, shards + 1) if shards % n == 0]
        raise ConfigError(
            f"train.shards = {shards}: cannot be divided among {processes} processes; start"
            f" {' or '.join(map(str, fitting))}, or set train.shards to a multiple of {processes}"
        )
    each = shards // processes
    return range(rank * each, (rank + 1) * each)


def slice_of(size: int, index: int, count: int) -> slice:
    """Slice ``index`` of ``count`` contiguous slices of nearly equal size, the larger ones first."""
    small, larger = divmod(size, count)
    start = index * small + min(index, larger)
    return slice(start, start + small + (index < larger))


def random_seed(seed: int, update: int, shard: int) -> int:
    """Seed of the random numbers of a shard in an update: 63 bits of a hash."""
    digest = hashlib.sha256(f"{seed}/{update}/{shard}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def halves(node: Node) -> tuple[Node, Node]:
    """The two children of a node of more than one shard."""
    middle = (node[0] + node[1]) // 2
    return (node[0], middle), (middle, node[1])


def nodes_within(own: range, node: Node) -> Iterator[Node]:
    """The largest nodes below ``node`` that lie in a range, from left to right."""
    first, last = max(own.start, node[0]), min(own.stop, node[1])
    if first >= last:
        return
    if (first, last) == node:
        yield node
        return
    for child in halves(node):
        yield from nodes_within(own, child)


def tree_sum(node: Node, known: Callable[[Node], T | None], add: Callable[[T, T], T]) -> T:
    """Sum over a node's shards from ``known`` sums of nodes; shards are requested from left to right."""
    if (value := known(node)) is not None:
        return value
    left, right = halves(node)
    total = tree_sum(left, known, add)
    return add(total, tree_sum(right, known, add))


def plan(processes: int, shards: int) -> list[tuple[int, Node]]:
    """Every (process, node) whose sum is exchanged, in the order of processes and shards."""
    owned = (shards_of(rank, processes, shards) for rank in range(processes))
    return [(rank, node) for rank, own in enumerate(owned) for node in nodes_within(own, (0, shards))]
