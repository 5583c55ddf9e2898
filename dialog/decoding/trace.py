"""A record of a beam search over one source: the continuations that it kept, ended and dropped."""

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

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
    """Continuations that the search ranked at every step, the most probable first.

    They are the best 2 · beam of each group under all rules. What a rule excludes is not among them.
    """

    def __init__(self) -> None:
        self.steps: list[list[Candidate]] = []

    def begin_step(self) -> None:
        """Begin the record of a step, in which every group adds its continuations."""
        self.steps.append([])

    def add(self, continuations: Tensor, log_probs: Tensor, ends: Tensor, lives: Tensor) -> None:
        """Record C continuations (C, t + 1), their log-probabilities (C,), and two masks (C,).

        ``ends`` marks those that end with ``</s>``, and ``lives`` those that the search keeps or finishes.
        """
        known = {one.tokens: one for one in self.steps[-1]}
        rows = zip(continuations.tolist(), log_probs.tolist(), ends.tolist(), lives.tolist(), strict=True)
        for tokens, log_prob, end, live in rows:
            if log_prob == -math.inf:
                continue
            fate: Fate = "dropped" if not live else "ended" if end else "kept"
            found = Candidate(tuple(tokens[:-1] if end else tokens), log_prob, fate)
            other = known.get(found.tokens)
            if other is None or other.fate == "dropped":  # a group keeps what another one drops
                known[found.tokens] = found
        self.steps[-1] = sorted(known.values(), key=lambda one: -one.log_prob)
