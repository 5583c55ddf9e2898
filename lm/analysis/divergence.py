"""Expected pairwise KL divergence of a model's predictions (Yang et al. 2018, Table 5)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lm.console.tables import Table
from lm.errors import DataError, DivergenceError
from lm.language.scoring import windows_of
from lm.language.trained import TrainedLm
from lm.language.windows import Ids
from lm.parallel.slices import summed


@dataclass(frozen=True)
class Divergence:
    """Mean divergence between predictions and mean entropy of a prediction, in nats, over all contexts."""

    expected_divergence: float
    mean_entropy: float
    contexts: int
    vocabulary: int
    dtype: str = "float64"


def divergence_of_run(trained: TrainedLm, ids: Ids) -> Divergence:
    """Exact mean of KL(P(·|c) ‖ P(·|c′)) in nats over all pairs of different contexts of a text.

    One pass and O(V) memory suffice, with sums over contexts:

        T/(T − 1) · [ mean_c Σ_x P_c log P_c − Σ_x (mean_c P_c) (mean_c log P_c) ]

    since Σ_x P_c log P_c′ is linear in both and KL(P_c ‖ P_c) = 0. The processes of the run's group share
    the text. DataError for fewer than two contexts. DivergenceError for a word of probability 0,
    for which KL is infinite.
    """
    if len(ids) < 2:
        raise DataError("a pair of contexts takes two tokens; name a longer text, or raise --limit")

    def blocks(own: range) -> Iterator[Tensor]:
        return trained.log_probs(ids, only=own)

    words = len(trained.codec.vocabulary)
    shapes = ((2,), (words,), (words,))
    return _report(*summed(trained.group, windows_of(ids), blocks, _sums, shapes))


def _sums(blocks: Iterator[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Contexts and negative entropy (2), probabilities (V), log-probabilities (V), summed over contexts."""
    contexts, negative_entropy = 0, 0.0
    probability_sum = log_sum = torch.zeros(())
    for logs in blocks:
        if not torch.isfinite(logs).all():
            raise DivergenceError(
                "log-probabilities are not finite: "
                "the model has diverged, or gives words probability 0; choose another checkpoint"
            )
        probabilities = logs.exp()
        negative_entropy += float((probabilities * logs).sum())
        probability_sum = probability_sum + probabilities.sum(0)
        log_sum = log_sum + logs.sum(0)
        contexts += len(logs)
    return torch.tensor([contexts, negative_entropy], dtype=torch.float64), probability_sum, log_sum


def _report(scalars: Tensor, probability_sum: Tensor, log_sum: Tensor) -> Divergence:
    contexts, negative_entropy = int(scalars[0]), float(scalars[1])
    cross = float((probability_sum / contexts) @ (log_sum / contexts))
    mean = max(0.0, (negative_entropy / contexts - cross) * contexts / (contexts - 1))
    return Divergence(mean, -negative_entropy / contexts, contexts, len(log_sum))


def divergence_tables(results: Mapping[str, Divergence]) -> list[Table | str]:
    """Table with a row per run, by name."""
    rows = [
        {
            "run": name,
            "expected KL, nats": found.expected_divergence,
            "mean entropy, nats": found.mean_entropy,
            "contexts": found.contexts,
            "words": found.vocabulary,
        }
        for name, found in results.items()
    ]
    return [Table("Divergence of predictions, over all pairs of contexts", rows)]
