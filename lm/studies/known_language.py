"""A synthetic language with known true distributions, for the comparison of heads."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from lm.errors import DivergenceError, require
from lm.spectra.spectrum import RankResult


@dataclass(frozen=True)
class Language:
    """A language with log P = U Wᵀ − log Z, where U (C, r − 1) and W (V, r − 1) are Gaussian.

    The logits have rank r − 1, and the normaliser adds one. ``spread`` is their standard deviation in nats.

    Raises:
        ConfigError: an impossible size or rank, or a rank that float64 cannot resolve.
    """

    seed: int
    contexts: int
    vocab: int
    rank: int
    spread: float = 3.0
    context_law: Literal["uniform", "zipf"] = "uniform"

    def __post_init__(self) -> None:
        smaller = min(self.contexts, self.vocab)
        require(smaller >= 2, f"--contexts or --vocab {smaller}: must be at least 2")
        require(
            2 <= self.rank <= smaller,
            f"--rank {self.rank}: choose between 2 and {smaller}, the smaller of contexts and words",
        )
        require(0 < self.spread < 100, f"--spread {self.spread}: must be above 0 and below 100")
        law = self.context_law
        require(law in ("uniform", "zipf"), f"--context-law {law}: must be uniform or zipf")
        measured = measured_rank(self.log_probs)
        require(
            measured == self.rank,
            f"--rank {self.rank}: the language has rank {measured} in float64; choose a --spread nearer to 3",
        )

    @cached_property
    def log_probs(self) -> Tensor:
        """log P(v | c), (C, V) float64."""
        generator = torch.Generator().manual_seed(self.seed)
        factors = [
            torch.randn(size, self.rank - 1, generator=generator, dtype=torch.float64)
            for size in (self.contexts, self.vocab)
        ]
        logits = factors[0] @ factors[1].T * (self.spread / math.sqrt(self.rank - 1))
        return torch.log_softmax(logits, dim=-1)

    @cached_property
    def context_probs(self) -> Tensor:
        """P(c), (C,) float64."""
        numbers = torch.arange(1, self.contexts + 1, dtype=torch.float64)
        weights = numbers.reciprocal() if self.context_law == "zipf" else torch.ones_like(numbers)
        return weights / weights.sum()

    @cached_property
    def entropy(self) -> float:
        """Entropy of the next word given its context in nats, the loss of a perfect model."""
        return -float(self.context_probs @ (self.log_probs.exp() * self.log_probs).sum(-1))

    @cached_property
    def joint_probs(self) -> Tensor:
        """P(c, v), (C, V) float32."""
        return (self.context_probs[:, None] * self.log_probs.exp()).float()

    def cross_entropy(self, log_probs: Tensor) -> Tensor:
        """Loss of a model's log-probabilities (C, V) in nats."""
        return -(self.joint_probs * log_probs).sum()

    def measured(self, log_probs: Tensor, name: str) -> tuple[float, int]:
        """KL(truth ‖ model) and rank of a model's log-probabilities (C, V), float64.

        DivergenceError with its name if they are not finite.
        """
        if not log_probs.isfinite().all():
            raise DivergenceError(f"{name} diverged; lower --lr")
        return self.divergence(log_probs), measured_rank(log_probs)

    def divergence(self, log_probs: Tensor) -> float:
        """Exact KL(truth ‖ model) in nats over all contexts. ``log_probs`` (C, V) are the model's."""
        return float(self.context_probs @ (self.log_probs.exp() * (self.log_probs - log_probs)).sum(-1))


def measured_rank(log_probs: Tensor) -> int:
    """Numerical rank of a (C, V) float64 matrix: singular values above the expected roundoff error."""
    values = torch.linalg.svdvals(log_probs)
    rows, columns = log_probs.shape
    return RankResult(values.numpy(), (rows, columns)).rank
