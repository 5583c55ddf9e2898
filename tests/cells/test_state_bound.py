"""Bound of the states of recurrent trunks: no weights and no inputs exceed it."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from lm.cells.config import CellConfig
from lm.trunks.recurrent import RecurrentRates, RecurrentTrunk

STEPS, STREAMS, SIZES = 40, 20, (4, 5, 5)
BOUNDED: list[dict[str, Any]] = [
    {}, {"cap_input_gate": True}, {"layer_norm": True, "input_scale": True}, {"weight_rank": 2},
    {"kind": "mlstm"}, {"kind": "mlstm", "layer_norm": True},
    {"kind": "mogrifier"}, {"kind": "mogrifier", "rounds": 4, "zigzag": False, "cap_input_gate": True},
    {"kind": "gru"}, {"kind": "gru", "input_scale": True},
    {"kind": "mogrifier_gru", "rounds": 0}, {"kind": "mogrifier_gru", "rounds": 1},
]  # fmt: skip
UNBOUNDED: list[dict[str, Any]] = [
    {"kind": "mogrifier_gru", "rounds": 2}, {"kind": "mogrifier_gru", "rounds": 5, "zigzag": False},
]  # fmt: skip


def trunk_and_largest(
    cell: dict[str, Any], resettable: bool, layer_sum: bool
) -> tuple[RecurrentTrunk, float]:
    """A trunk, and its largest absolute state over windows with small and large random weights and words."""
    config = CellConfig.model_validate(cell)
    rates = RecurrentRates()
    trunk = RecurrentTrunk(config, SIZES, rates, resettable=resettable, layer_sum=layer_sum).double()
    largest = 0.0
    for scale in (0.3, 3.0, 30.0):
        for parameter in trunk.parameters():
            nn.init.normal_(parameter, std=scale)
        state = trunk.initial_state(STREAMS)
        with torch.no_grad():
            for _ in range(2):
                words = scale * torch.randn(STEPS, STREAMS, SIZES[0], dtype=torch.float64)
                read = trunk(words, state)
                state, largest = read.state, max(largest, float(read.outputs.abs().max()))
    return trunk, largest


@pytest.mark.parametrize("layer_sum", [False, True])
@pytest.mark.parametrize("resettable", [False, True])  # by torch's own layers, or by ours
@pytest.mark.parametrize("cell", BOUNDED, ids=str)
def test_states_stay_within_a_bound_that_they_come_close_to(
    cell: dict[str, Any], resettable: bool, layer_sum: bool
) -> None:
    trunk, largest = trunk_and_largest(cell, resettable, layer_sum)
    assert trunk.state_bound == (2 if layer_sum else 1)
    assert 0.45 * trunk.state_bound < largest <= trunk.state_bound * (1 + 1e-12)


@pytest.mark.parametrize("layer_sum", [False, True])
@pytest.mark.parametrize("cell", UNBOUNDED, ids=str)
def test_a_gru_whose_state_is_gated_has_no_bound(cell: dict[str, Any], layer_sum: bool) -> None:
    trunk, largest = trunk_and_largest(cell, False, layer_sum)
    assert trunk.state_bound == math.inf
    assert largest > 2
