"""Ensembles: several models of one vocabulary as one, by the mean of their probabilities at every token.

R responses · N tokens of all responses, packed · K components · V words.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from dialog.batches import Batch
from dialog.decoding.steps import StepFunction
from dialog.seq2seq import Seq2Seq, by_item
from lm.trunks.trunk import RowState


@dataclass(frozen=True)
class EnsembleState:
    """The decoding states of the members."""

    members: tuple[RowState, ...]

    def select(self, rows: Tensor) -> "EnsembleState":
        """States of some rows, which may repeat."""
        return EnsembleState(tuple(member.select(rows) for member in self.members))


class Ensemble(nn.Module):
    """Members with one vocabulary and one encoding of examples."""

    def __init__(self, members: Sequence[Seq2Seq]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    @property
    def models(self) -> list[Seq2Seq]:
        """The members."""
        return [cast(Seq2Seq, member) for member in self.members]

    def nll(self, batch: Batch) -> Tensor:
        """−log P of every response in nats, (R,) float64, in the order of the items."""
        scores = [model.token_nll(batch) for model in self.models]
        mean = _log_mean([-nll for nll, _ in scores])
        return by_item(-mean, scores[0][1], batch)

    def start(self, batch: Batch) -> EnsembleState:
        """Decoding states for the contexts of a batch, in the order of the items."""
        return EnsembleState(tuple(model.start(batch) for model in self.models))

    def stepper(self, component_temperature: float, bf16: bool) -> StepFunction[EnsembleState]:
        """The step function: tokens (R,) → log-probabilities (R, V) and the next state."""
        steps = [model.stepper(component_temperature, bf16) for model in self.models]

        def step(tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
            after = [one(tokens, member) for one, member in zip(steps, state.members, strict=True)]
            return _log_mean([log_probs for log_probs, _ in after]), EnsembleState(tuple(s for _, s in after))

        return step

    def component_step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        """A step by components of all members: log (π_k / M) + log p_k, (R, ΣK, V)."""
        pairs = zip(self.models, state.members, strict=True)
        after = [model.component_step(tokens, member) for model, member in pairs]
        joint = torch.cat([log_probs for log_probs, _ in after], 1) - math.log(len(after))
        return joint, EnsembleState(tuple(s for _, s in after))


def _log_mean(log_probs: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(log_probs)).logsumexp(0) - math.log(len(log_probs))
