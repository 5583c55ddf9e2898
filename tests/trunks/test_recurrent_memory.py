"""The estimated memory of a recurrent trunk is what its training takes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MEASURE = """
import json, os, sys
from pathlib import Path

import torch

from lm.cells.config import CellConfig
from lm.engine.memory import FLOAT
from lm.trunks.recurrent import RecurrentRates, RecurrentTrunk

STEPS, STREAMS, SIZE = 70, 40, 200
torch.set_num_threads(1)


def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


def measure(settings, state):
    trunk = RecurrentTrunk(CellConfig(**settings), [SIZE, SIZE, SIZE], RecurrentRates(state=state))

    def learn(steps, streams):
        words = torch.randn(steps, streams, SIZE, requires_grad=True)
        trunk(words, trunk.initial_state(streams))[0].sum().backward()

    learn(2, 2)  # what is loaded at the first use does not count, nor do gradients
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    learn(STEPS, STREAMS)
    taken = status("VmHWM") - before
    return taken / (FLOAT * trunk.activations(STEPS, STREAMS, torch.device("cpu")))


for settings in json.loads(sys.argv[1]):  # each in a process of its own, which has computed nothing before
    if not os.fork():
        print(measure(*settings), flush=True)
        os._exit(0)
    os.wait()
"""
CELLS: list[tuple[dict[str, object], float]] = [
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


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no high-water mark to reset")
def test_a_recurrent_trunk_takes_the_memory_that_is_said() -> None:
    command = [sys.executable, "-c", MEASURE, json.dumps(CELLS)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    shares = [float(line) for line in ended.stdout.splitlines()]
    assert len(shares) == len(CELLS)
    found = {str(cell): share for cell, share in zip(CELLS, shares, strict=True)}
    assert {cell: share for cell, share in found.items() if not 0.5 < share < 1.35} == {}
