"""Perplexity, and tests for a model that has learnt nothing."""

import math
from pathlib import Path

from lm.errors import DivergenceError
from lm.numbers import number


def perplexity(nll: float) -> float:
    """exp of nats a token. Infinite on overflow."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


def require_finite(value: float, what: str) -> float:
    """Return a value of a model's probabilities. DivergenceError if it is not finite."""
    if not math.isfinite(value):
        raise DivergenceError(f"{what}: the model's probabilities are not finite; choose another checkpoint")
    return value


def learnt(nll: float, words: int) -> bool:
    """True if the perplexity of a loss is below twice that of uniform guessing. False for NaN."""
    return nll < math.log(2 * words)


def guessing(nll: float, words: int) -> bool:
    """True if the perplexity of a loss is above half that of uniform guessing among ``words`` words."""
    return nll > math.log(words / 2)


def guessing_note(nll: float, words: int) -> str:
    """A warning if a model is near uniform guessing, else an empty string."""
    if not guessing(nll, words):
        return ""
    found = number("perplexity", perplexity(nll))
    return (
        f"warning: a perplexity of {found} is near guessing among {words:,} words;"
        " train longer, or with another optim.lr"
    )


def require_learnt(best_nll: float, words: int, run: Path) -> None:
    """Raise DivergenceError if the best validation perplexity is at least twice that of uniform guessing.

    So a training fails that diverges with finite numbers, such as with a ReLU head (Kanai et al. 2018, §5).
    """
    if not learnt(best_nll, words):
        found = number("perplexity", perplexity(best_nll))
        raise DivergenceError(
            f"{run}: diverged: the best validation perplexity is {found}, where guessing among {words:,}"
            f" words has {words:,}; lower optim.lr and train into another folder"
        )
