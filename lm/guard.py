"""When non-finite numbers are a bad batch that can be skipped, and when they are divergence."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from lm.errors import DivergenceError
from lm.lines import visible
from lm.meter import perplexity

IN_A_ROW = 10
WINDOW = 1_000
IN_WINDOW = 50  # 5 % of the window


def require_finite(value: float, what: str) -> float:
    """The value, which a model's probabilities came to; DivergenceError where it is not finite."""
    if not math.isfinite(value):
        raise DivergenceError(f"{what}: the model's probabilities are not finite; choose another checkpoint")
    return value


def learnt(nll: float, words: int) -> bool:
    """Whether a loss is of less than twice the perplexity of guessing; NaN is not."""
    return nll < math.log(2 * words)


def guessing(nll: float, words: int) -> bool:
    """Whether a loss is of more than half the perplexity of guessing among so many words."""
    return nll > math.log(words / 2)


def guessing_note(nll: float, words: int) -> str:
    """A warning where a model is near guessing; nothing otherwise."""
    if not guessing(nll, words):
        return ""
    return (
        f"warning: a perplexity of {perplexity(nll):,.0f} is near guessing among {words:,} words;"
        " train longer, or with another optim.lr"
    )


def require_learnt(best_nll: float, words: int, run: Path) -> None:
    """DivergenceError where a training's best validation has twice the perplexity of guessing, or more.

    So ends what diverges in numbers that stay finite, as those of a ReLU head do (Kanai et al. 2018, §5).
    """
    if not learnt(best_nll, words):
        raise DivergenceError(
            f"{visible(run)}: diverged: the best validation perplexity is {perplexity(best_nll):,.0f}, where"
            f" guessing among {words:,} words has {words:,}; lower optim.lr and train into another folder"
        )


@dataclass
class Guard:
    """Counts the updates skipped because the loss or the gradient norm was not finite."""

    in_a_row: int = 0
    recent: list[list[int]] = field(default_factory=list)  # [step, epoch, batch] of the last 1,000 steps
    recoveries: int = 0  # times that the last good checkpoint was returned to

    def passed(self) -> None:
        self.in_a_row = 0

    def skipped(self, step: int, epoch: int, batch: int) -> None:
        self.in_a_row += 1
        self.recent = [entry for entry in self.recent if entry[0] > step - WINDOW]
        self.recent.append([step, epoch, batch])

    @property
    def exhausted(self) -> bool:
        """Whether ten updates in a row, or 5 % of the last 1,000, were skipped."""
        return self.in_a_row >= IN_A_ROW or len(self.recent) >= IN_WINDOW

    def describe(self) -> str:
        """The skipped updates, newest last: ``step 7 (epoch 1, batch 6), …``."""
        shown = self.recent[-IN_A_ROW:]
        text = ", ".join(f"step {step} (epoch {epoch}, batch {batch})" for step, epoch, batch in shown)
        return text if len(shown) == len(self.recent) else f"… {text}"
