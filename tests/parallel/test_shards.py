"""Shards and the order of sums over them."""

import math
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm.errors import ConfigError
from lm.parallel.shards import nodes_within, plan, random_seed, shards_of, slice_of, tree_sum

SHARDS = st.integers(1, 48)


def tree(first: int, last: int) -> str:
    """The sum as the brackets of a formula."""
    if last - first == 1:
        return str(first)
    middle = (first + last) // 2
    return f"({tree(first, middle)}+{tree(middle, last)})"


@given(SHARDS, st.data())
def test_every_number_of_processes_adds_in_the_same_order(shards: int, data: st.DataObject) -> None:
    processes = data.draw(st.sampled_from([n for n in range(1, shards + 1) if shards % n == 0]))

    def add(left: str, right: str) -> str:
        return f"({left}+{right})"

    def leaf(node: tuple[int, int]) -> str | None:
        return str(node[0]) if node[1] - node[0] == 1 else None

    exchanged = {node: tree_sum(node, leaf, add) for _, node in plan(processes, shards)}
    assert tree_sum((0, shards), exchanged.get, add) == tree(0, shards)


@given(SHARDS, st.data())
def test_processes_share_out_all_shards_and_send_few_sums(shards: int, data: st.DataObject) -> None:
    processes = data.draw(st.sampled_from([n for n in range(1, shards + 1) if shards % n == 0]))
    parts = [shards_of(rank, processes, shards) for rank in range(processes)]
    assert [*chain(*parts)] == [*range(shards)]
    for part in parts:
        nodes = [*nodes_within(part, (0, shards))]
        assert [n for first, last in nodes for n in range(first, last)] == [*part]
        assert len(nodes) <= 2 * math.ceil(math.log2(shards + 1))
    if shards & (shards - 1) == 0:
        assert len(plan(processes, shards)) == processes, "one sum a process where both are powers of two"


@given(st.integers(0, 200), SHARDS)
def test_slices_are_contiguous_and_even(size: int, count: int) -> None:
    rows = [slice_of(size, index, count) for index in range(count)]
    assert [*chain(*(range(part.start, part.stop) for part in rows))] == [*range(size)]
    lengths = {part.stop - part.start for part in rows}
    assert max(lengths) - min(lengths) <= 1


def test_processes_that_do_not_divide_the_shards_are_told_which_do() -> None:
    with pytest.raises(ConfigError, match=r"4: cannot be divided among 3 processes; start 1 or 2 or 4"):
        shards_of(0, 3, 4)


def test_random_seeds_differ_by_seed_update_and_shard() -> None:
    seeds = {random_seed(a, b, c) for a in range(4) for b in range(30) for c in range(9)}
    assert len(seeds) == 4 * 30 * 9
    assert all(0 <= seed < 2**63 for seed in seeds)
