"""What is said of a head's memory is what it takes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MEASURE = """
import json, sys
from pathlib import Path

import torch

from lm.heads.head import Head, HeadConfig
from lm.engine.memory import FLOAT, head_scratch

TOKENS, HIDDEN, WORDS = 300, 40, 10_000
torch.set_num_threads(1)


def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


head = Head(HeadConfig(embedding_size=40, **json.loads(sys.argv[1])), HIDDEN, WORDS)
hidden = torch.randn(TOKENS, HIDDEN, requires_grad=True)
targets = torch.randint(WORDS, (TOKENS,))
head.objective(hidden[:2], targets[:2])[0].backward()  # what is loaded at the first use does not count
for tensor in (hidden, *head.parameters()):
    tensor.grad = None
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
head.objective(hidden, targets)[0].backward()
gradients = sum(tensor.grad.nbytes for tensor in (hidden, *head.parameters()))
print((status("VmHWM") - before - gradients) / (FLOAT * head_scratch(head, TOKENS)))
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
@pytest.mark.parametrize("head", HEADS, ids=lambda head: "-".join(map(str, head.values())))
def test_the_loss_takes_the_memory_that_is_said(head: dict[str, object]) -> None:
    command = [sys.executable, "-c", MEASURE, json.dumps(head)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0.4 < float(run.stdout) < 1.3
