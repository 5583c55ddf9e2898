"""Table of the best hypotheses of several sources."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dialog.decoding.steps import Hypothesis
from lm.heads.sampling import INFINITY


@dataclass(frozen=True, slots=True)
class BestHypotheses:
    """N places for hypotheses of each of S sources. The log-probability of an empty place is -inf."""

    tokens: Tensor  # (S, N, T)
    lengths: Tensor  # (S, N), </s> not counted
    log_probs: Tensor  # (S, N), float64: sums of many steps, compared exactly
    scores: Tensor  # (S, N), float64

    def rows(self, sources: Tensor) -> "BestHypotheses":
        """Hypotheses of some sources."""
        parts = (self.tokens, self.lengths, self.log_probs, self.scores)
        return BestHypotheses(*(part[sources] for part in parts))

    def best(self, other: "BestHypotheses", count: int) -> "BestHypotheses":
        """Best ``count`` hypotheses of both. On equal scores ``self`` and earlier places come first."""
        scores, order = torch.cat([self.scores, other.scores], 1).sort(dim=1, descending=True, stable=True)
        scores, order = scores[:, :count], order[:, :count]
        steps = order.unsqueeze(-1).expand(-1, -1, self.tokens.shape[-1])
        tokens = torch.cat([self.tokens, other.tokens], 1).gather(1, steps)
        lengths = torch.cat([self.lengths, other.lengths], 1).gather(1, order)
        log_probs = torch.cat([self.log_probs, other.log_probs], 1).gather(1, order)
        return BestHypotheses(tokens, lengths, log_probs, scores)

    def listed(self, source: int, *, finished: bool) -> list[Hypothesis]:
        """Hypotheses of one source, without empty places."""
        parts = (self.tokens, self.lengths, self.log_probs, self.scores)
        places = zip(*(part[source].tolist() for part in parts), strict=True)
        return [
            Hypothesis(tuple(tokens[:length]), log_prob, score, finished)
            for tokens, length, log_prob, score in places
            if log_prob > -INFINITY
        ]
