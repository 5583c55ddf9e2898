"""Contextual temperature: logits z / τ, where τ depends on the context and the word.

µ = W2 W1 g for a hidden state g, with two matrices of its own, and τ is one of

    contextual     τ = (softmax_V(µ) + α) / β      (Contextual Temperature for Language Modeling, Eq. 5)
    exponential    τ = λ^tanh(µ), in (1/λ, λ)      (ibid. §4.4 (a), after Lin et al. 2018)
    additive       τ = tanh(µ) + λ, in (λ−1, λ+1)  (ibid. §4.4 (b))
    sigmoid        τ = low + (high − low) σ(µ)     (not in the paper)

All components of a mixture share τ (Eq. 6), and the bias is part of z.

The paper's own formula is nearly constant. Its softmax is over the vocabulary, so the shares of all words sum
to 1. The mean of τ is therefore (1/V + α)/β in every context, regardless of the parameters. It is 2.0002
for α = 1, β = ½ and 10,000 words. A single word could have 4, but only while all others have 2. The paper
prints values of τ − 2 from 8e-6 to 2e-4. The loss scaling of Eq. 7 is thus a constant factor of 2, and the
model is nearly one with the constant temperature 2. The other three formulas can vary.

N tokens · H hidden size · Q rank · V words.
"""

import torch
from torch import Tensor, nn

from lm.heads.chunked_loss import chunked
from lm.heads.config import HeadConfig
from lm.heads.precision import precise, product


class WordTemperature(nn.Module):
    """Temperature τ of every word in a context.

    Args:
        config: formula, its constants and Q (``temperature_rank``; by default E, or else H).
        hidden_size: H.
        vocab_size: V.
    """

    def __init__(self, config: HeadConfig, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        rank = config.temperature_rank or config.embedding_size or hidden_size
        self.down = nn.Linear(hidden_size, rank, bias=False)  # W1
        self.up = nn.Linear(rank, vocab_size, bias=False)  # W2

    def matrix_blocks(self) -> dict[str, int]:
        """No block of W2, which belongs to words."""
        return {"up.weight": 0}

    def forward(self, hidden: Tensor) -> Tensor:
        """τ (N, V) for hidden states (N, H), positive and at least float32."""
        own = self.config
        states = product(precise(hidden), precise(self.down.weight))
        scores = product(states, precise(self.up.weight))  # µ
        match own.temperature:
            case "contextual":
                return (scores.softmax(-1) + own.temperature_alpha) / own.temperature_beta
            case "exponential":
                return torch.pow(own.temperature_lambda, torch.tanh(scores))
            case "additive":
                return torch.tanh(scores) + own.temperature_lambda
            case _:
                low, high = own.temperature_low, own.temperature_high
                return low + (high - low) * torch.sigmoid(scores)

    def mean(self, hidden: Tensor, size: int) -> Tensor:
        """Mean of τ over words and contexts (N, H), a scalar without gradient; ``size`` contexts at a time.

        Scaling a loss by the mean rebalances it with losses that are not tempered. A gradient through the
        scale would also reward low temperatures.
        """
        if self.config.temperature == "contextual":
            share = 1 / self.up.out_features
            mean = (share + self.config.temperature_alpha) / self.config.temperature_beta
            return hidden.new_tensor(mean)
        return chunked(lambda states: self(states).mean(1), [hidden], size).mean()
