"""Past decode regularisation (Brahma 2018): the present word is predicted from the next word's distribution.

N tokens · E context size · V words.
"""

import torch
from torch import Tensor, nn

from lm.heads.precision import precise, product


class PastDecoder(nn.Module):
    """Predicts the present word through the output matrix W: softmax(W tanh(A Wᵀp + c) + b)."""

    def __init__(self, size: int, vocab_size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, size)  # A, c
        self.bias = nn.Parameter(torch.zeros(vocab_size))  # b

    def forward(self, log_probs: Tensor, weight: Tensor, words: Tensor, bf16: bool = False) -> Tensor:
        """−log of the probability of the present words (N,), from log p (N, V) of the next and W (V, E)."""
        expected = product(log_probs.exp(), weight.mT, bf16)
        state = torch.tanh(product(expected, precise(self.layer.weight)) + precise(self.layer.bias))
        logits = product(state, weight, bf16) + precise(self.bias)
        return nn.functional.cross_entropy(logits, words, reduction="none")
