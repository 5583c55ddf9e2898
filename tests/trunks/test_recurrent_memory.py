"""The estimated memory of a recurrent trunk is what its training takes."""

from typing import Any

import pytest
import torch

from lm.cells.config import CellConfig
from lm.engine.memory import FLOAT
from lm.trunks.recurrent import RecurrentRates, RecurrentTrunk
from tests.support.peak_memory import MEASURABLE, measured, peak

Cell = tuple[dict[str, Any], float]  # settings, and the rate of state dropout
STEPS, STREAMS, SIZE = 35, 40, 200


def share_taken(cell: Cell) -> float:
    """Memory of a window's gradients, as a share of what is said of the trunk."""
    settings, state = cell
    trunk = RecurrentTrunk(CellConfig(**settings), [SIZE, SIZE, SIZE], RecurrentRates(state=state))

    def learn(steps: int, streams: int) -> None:
        words = torch.randn(steps, streams, SIZE, requires_grad=True)
        trunk(words, trunk.initial_state(streams))[0].sum().backward()

    learn(2, 2)  # what is loaded at the first use does not count, nor do gradients
    taken = peak(lambda: learn(STEPS, STREAMS))
    return taken / (FLOAT * trunk.activations(STEPS, STREAMS, torch.device("cpu")))


CELLS: list[Cell] = [
    ({"kind": "lstm"}, 0.0),
    ({"kind": "lstm"}, 0.2),
    ({"kind": "lstm", "init": "truncated"}, 0.0),
    ({"kind": "lstm", "weight_rank": 20}, 0.0),
    ({"kind": "mogrifier", "rounds": 0}, 0.0),
    ({"kind": "mogrifier"}, 0.0),
    ({"kind": "gru"}, 0.0),
    ({"kind": "gru"}, 0.2),
    ({"kind": "lstm", "layer_norm": True}, 0.0),
    ({"kind": "mlstm"}, 0.0),
    ({"kind": "lstm", "input_scale": True}, 0.0),
]


@pytest.mark.skipif(not MEASURABLE, reason="no high-water mark to reset")
def test_a_recurrent_trunk_takes_the_memory_that_is_said() -> None:
    found = {str(cell): share for cell, share in zip(CELLS, measured(share_taken, CELLS), strict=True)}
    assert {cell: share for cell, share in found.items() if not 0.5 < share < 1.35} == {}
