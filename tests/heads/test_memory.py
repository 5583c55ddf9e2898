"""What is said of a head's memory is what it takes."""

from typing import Any

import pytest
import torch

from lm.engine.memory import FLOAT, head_scratch
from lm.heads.head import Head, HeadConfig
from tests.support.peak_memory import MEASURABLE, measured, peak

TOKENS, HIDDEN, WORDS = 300, 40, 5_000


def share_taken(settings: dict[str, Any]) -> float:
    """Memory of a loss and its gradients, as a share of what is said of the head."""
    head = Head(HeadConfig(embedding_size=40, **settings), HIDDEN, WORDS)
    hidden = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    targets = torch.randint(WORDS, (TOKENS,))
    head.objective(hidden[:2], targets[:2])[0].backward()  # what is loaded at the first use does not count
    leaves = [hidden, *head.parameters()]
    for tensor in leaves:
        tensor.grad = None
    taken = peak(lambda: head.objective(hidden, targets)[0].backward())
    gradients = sum(tensor.grad.nbytes for tensor in leaves if tensor.grad is not None)
    return (taken - gradients) / (FLOAT * head_scratch(head, TOKENS))


HEADS: list[dict[str, Any]] = [
    {"kind": "mos", "components": 5},
    {"kind": "mos", "components": 5, "label_smoothing": 0.1},
    {"kind": "plif"},
    {"kind": "mixtape", "components": 4},
    {"kind": "softmax", "temperature": "exponential"},
    {"kind": "moss", "components": 4, "temperature": "contextual"},
]


@pytest.mark.skipif(not MEASURABLE, reason="no high-water mark to reset")
def test_the_loss_takes_the_memory_that_is_said() -> None:
    """Pages of the process itself add to some measurements, which are repeated."""
    wrong = HEADS
    for _ in range(2):
        shares = zip(wrong, measured(share_taken, wrong), strict=True)
        wrong = [head for head, share in shares if not 0.4 < share < 1.3]
    assert not wrong
