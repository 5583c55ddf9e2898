"""The exact sum over shards: every process gets the bits of one process."""

import pytest
import torch
from torch import Tensor

from lm.parallel.group import Group
from lm.parallel.reduction import ExactSum
from lm.parallel.shards import nodes_within, shards_of, tree_sum
from tests.support.ranks import together

LENGTH = 11


def sums(vectors: Tensor, group: Group) -> list[Tensor]:
    """Two sums, of the vectors and of their negatives, by one process of a group."""
    count = len(vectors)
    add = ExactSum(group, count)

    def total(vectors: Tensor) -> Tensor:
        known = {(number, number + 1): vector.clone() for number, vector in enumerate(vectors)}
        nodes = nodes_within(shards_of(group.rank, group.size, count), (0, count))
        return add([tree_sum(node, known.get, Tensor.add_) for node in nodes])

    return [total(vectors), total(-vectors)]


@pytest.mark.parametrize(("shards", "processes"), [(4, 2), (4, 4), (5, 5), (6, 2), (6, 3), (12, 4), (16, 16)])
def test_every_process_has_the_bits_of_one(shards: int, processes: int) -> None:
    """Also where processes send several sums each, or have nothing of a short vector."""
    vectors = torch.randn(shards, LENGTH) * 10 ** torch.arange(-6.0, 5.0)
    alone = sums(vectors, Group())
    assert torch.allclose(alone[0], vectors.sum(0), rtol=1e-4)
    assert torch.equal(alone[1], -alone[0])
    for found in together(processes, lambda group: sums(vectors, group)):
        assert isinstance(found, list), found
        assert all(map(torch.equal, found, alone))
