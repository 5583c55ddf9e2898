"""A record of a beam search over one source: the continuations that it kept, ended and dropped.

The search itself knows nothing of it. A wrapped step function sees the log-probabilities, and a wrapped state
sees the rows that the search keeps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal

import torch
from torch import Tensor

from dialog.decoding.steps import Marks, StateT, StepFunction
from lm.heads.sampling import INFINITY, ranked

Fate = Literal["kept", "ended", "dropped"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A continuation of a live hypothesis: its tokens, its log-probability in nats, and its fate.

    An ended one ends with ``</s>``, which is not among its tokens.
    """

    tokens: tuple[int, ...]
    log_prob: float
    fate: Fate


class BeamTrace:
    """The most probable 2 · beam continuations of every step, without forbidden tokens.

    Of those that a rule excludes, such as a repeated n-gram, the fate is "dropped". Less probable ones that
    the search keeps, such as a required word, come besides.
    """

    def __init__(self, beam: int, marks: Marks) -> None:
        self.steps: list[list[Candidate]] = []
        self._beam, self._marks = beam, marks
        self._live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
        self._log_probs: Tensor | None = None  # (R, V) of the step before

    def select(self, rows: Tensor) -> None:
        """Follow the rows that the search keeps."""
        assert self._log_probs is not None
        self._live = [self._live[row] for row in rows.tolist()]
        self._log_probs = self._log_probs[rows]

    def step(
        self, function: StepFunction[StateT]
    ) -> "Callable[[Tensor, Watched[StateT]], tuple[Tensor, Watched[StateT]]]":
        """The step function, watched."""

        def watched(tokens: Tensor, state: Watched[StateT]) -> tuple[Tensor, Watched[StateT]]:
            if self._log_probs is not None:
                self._extend(tokens.tolist())
            log_probs, after = function(tokens, state.state)
            self._log_probs = log_probs
            self._weigh(log_probs)
            return log_probs, Watched(after, self)

        return watched

    def _extend(self, tokens: list[int]) -> None:
        """Note the tokens that the search has chosen for its live rows."""
        assert self._log_probs is not None
        gained = self._log_probs[torch.arange(len(tokens)), torch.tensor(tokens)].double().tolist()
        self._live = [
            ((*history, token), total + gain)
            for (history, total), token, gain in zip(self._live, tokens, gained, strict=True)
        ]
        kept = {history: Candidate(history, total, "kept") for history, total in self._live}
        others = [one for one in self.steps[-1] if one.fate == "ended" or one.tokens not in kept]
        self.steps[-1] = sorted([*others, *kept.values()], key=lambda one: -one.log_prob)

    def _weigh(self, log_probs: Tensor) -> None:
        """Append the best continuations. All are dropped until the search keeps them, except ended ones."""
        forbidden = torch.tensor(list(self._marks.forbidden), dtype=torch.long, device=log_probs.device)
        totals = torch.tensor([total for _, total in self._live], dtype=torch.float64)
        allowed = log_probs.index_fill(1, forbidden, -INFINITY).double().cpu() + totals[:, None]
        count = min(2 * self._beam, allowed.numel())
        values, places = ranked(allowed.view(1, -1), count)
        found = []
        for rank, (value, place) in enumerate(zip(values[0].tolist(), places[0].tolist(), strict=True)):
            row, token = divmod(place, allowed.shape[1])
            if value == -INFINITY:
                break
            history = self._live[row][0]
            if token != self._marks.eos:
                found.append(Candidate((*history, token), value, "dropped"))
            else:
                found.append(Candidate(history, value, "ended" if rank < self._beam else "dropped"))
        self.steps.append(found)


@dataclass(frozen=True)
class Watched(Generic[StateT]):
    """A state whose selections a trace follows."""

    state: StateT
    trace: BeamTrace

    def select(self, rows: Tensor) -> "Watched[StateT]":
        self.trace.select(rows)
        return Watched(self.state.select(rows), self.trace)
