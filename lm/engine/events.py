"""Events of a training, for reporters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from lm.numbers import number


@dataclass(frozen=True, slots=True)
class Goal:
    """Limits of a training; 0 = none. Early stopping may end it sooner."""

    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Started:
    """Start or resumption of a training after ``step`` updates; ``goal.seconds`` counts from now."""

    step: int
    goal: Goal


@dataclass(frozen=True, slots=True)
class Update:
    """One finished update."""

    step: int
    epoch: int
    nll: float  # nats per token of this update; NaN where it was skipped
    lr: float
    grad_norm: float
    tokens: int  # of this update


@dataclass(frozen=True, slots=True)
class Validating:
    """Beginning of a validation."""


@dataclass(frozen=True, slots=True)
class Validated:
    """Metrics of a validation at a step; ``averaged`` if the averaged weights were validated."""

    step: int
    metrics: Mapping[str, float]
    best: bool
    averaged: bool = False

    def line(self) -> str:
        """Weights, metrics and rank of the validation, without the number of tokens, which is constant."""
        values = [
            f"{'ppl' if name == 'perplexity' else name} {number(name, value)}"
            for name, value in self.metrics.items()
            if name != "tokens"
        ]
        weights, best = " (averaged)" if self.averaged else "", ["best so far"] if self.best else []
        return " · ".join([f"validation at step {self.step:,}{weights}", *values, *best])


@dataclass(frozen=True, slots=True)
class Note:
    """A line that the user should know: a resumption, a skipped batch, a failed save."""

    line: str


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a training for any reason."""


Event: TypeAlias = Started | Update | Validating | Validated | Note | Ended
Reporter: TypeAlias = Callable[[Event], None]  # never raises


def no_report(event: Event) -> None:
    """Reporter that shows nothing."""
