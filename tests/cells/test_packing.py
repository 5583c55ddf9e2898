"""Padding of packed sequences, against torch's own."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lm.cells.packing import packed_as, padded

LENGTHS = [[3, 3, 2, 1], [1, 4, 2, 4], [5], [2, 2]]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_padding_and_its_gradient_are_those_of_torch(lengths: list[int]) -> None:
    rows = torch.randn(len(lengths), max(lengths), 2)
    packed = pack_padded_sequence(rows, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    weights = torch.randn_like(rows)
    found = []
    for pad in (padded, lambda packed: pad_packed_sequence(packed, batch_first=True)[0]):
        data = packed.data.clone().requires_grad_()
        sequences = pad(packed._replace(data=data))
        (sequences * weights).sum().backward()
        found.append((sequences, data.grad))
    (ours, of_ours), (theirs, of_theirs) = found
    assert torch.equal(ours, theirs)
    assert torch.equal(of_ours, of_theirs)
    assert torch.equal(packed_as(ours, packed).data, packed.data)
    assert torch.equal(packed_as(weights, packed).data, of_ours)
