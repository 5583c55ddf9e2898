"""Perplexity, and when a number shows that a model has learnt nothing."""

import math
from pathlib import Path

from lm.errors import DivergenceError


def perplexity(nll: float) -> float:
    """exp of nats a token, infinite where that overflows."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


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
            f"{run}: diverged: the best validation perplexity is {perplexity(best_nll):,.0f}, where"
            f" guessing among {words:,} words has {words:,}; lower optim.lr and train into another folder"
        )
