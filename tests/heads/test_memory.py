"""What is said of a head's memory is what it takes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MEASURE = """
import json, os, sys
from pathlib import Path

import torch

from lm.heads.head import Head, HeadConfig
from lm.engine.memory import FLOAT, head_scratch

TOKENS, HIDDEN, WORDS = 300, 40, 10_000
torch.set_num_threads(1)


def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


def measure(settings):
    head = Head(HeadConfig(embedding_size=40, **settings), HIDDEN, WORDS)
    hidden = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    targets = torch.randint(WORDS, (TOKENS,))
    head.objective(hidden[:2], targets[:2])[0].backward()  # what is loaded at the first use does not count
    for tensor in (hidden, *head.parameters()):
        tensor.grad = None
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    head.objective(hidden, targets)[0].backward()
    gradients = sum(tensor.grad.nbytes for tensor in (hidden, *head.parameters()))
    return (status("VmHWM") - before - gradients) / (FLOAT * head_scratch(head, TOKENS))


for settings in json.loads(sys.argv[1]):  # each in a process of its own, which has computed nothing before
    if not os.fork():
        print(measure(settings), flush=True)
        os._exit(0)
    os.wait()
"""
HEADS: list[dict[str, object]] = [
    {"kind": "mos", "components": 5},
    {"kind": "mos", "components": 5, "label_smoothing": 0.1},
    {"kind": "plif"},
    {"kind": "mixtape", "components": 4},
    {"kind": "softmax", "temperature": "exponential"},
    {"kind": "moss", "components": 4, "temperature": "contextual"},
]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no high-water mark to reset")
def test_the_loss_takes_the_memory_that_is_said() -> None:
    command = [sys.executable, "-c", MEASURE, json.dumps(HEADS * 2)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    found = list(map(float, run.stdout.split()))
    assert len(found) == 2 * len(HEADS)
    shares = map(
        min, found[: len(HEADS)], found[len(HEADS) :]
    )  # pages of the process itself add to one of them
    wrong = {str(head): share for head, share in zip(HEADS, shares, strict=True) if not 0.4 < share < 1.3}
    assert not wrong
