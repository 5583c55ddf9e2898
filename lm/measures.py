"""Perplexity, and tests of losses and texts: a model that has learnt nothing, many unknown words."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from lm.errors import DivergenceError, HighrankError
from lm.numbers import number

# a text needs no note up to this share of unknown tokens, plus this many times that of the run's own text
_FEW_UNKNOWN, _AS_MANY = 0.02, 1.5
_OF_GUESSING = 0.925  # share of the nats of uniform guessing; half its perplexity for 10,000 words


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
    """True if a loss is above 92.5 % of that of uniform guessing among ``words`` words."""
    return nll > _OF_GUESSING * math.log(words)


def nonmonotonic(history: Sequence[float], window: int) -> bool:
    """True if the latest validation is worse than the best one that is older than the ``window`` before it.

    This condition starts averaging in NT-ASGD and ends finetuning (Merity et al. 2018, Algorithm 1). As in
    their code, it needs at least ``window`` + 1 earlier validations.
    """
    settled = history[: max(0, len(history) - 1 - window)]
    return bool(settled) and history[-1] > min(settled)


def guessing_note(nll: float, words: int) -> str:
    """A warning if a model is near uniform guessing or far beyond it, else an empty string."""
    if not guessing(nll, words):
        return ""
    found = f"warning: a perplexity of {number('perplexity', perplexity(nll))} is"
    if not learnt(nll, words):
        return (
            f"{found} more than twice that of guessing among {words:,} words; choose another checkpoint or"
            " text, or train with a lower optim.lr"
        )
    return f"{found} near guessing among {words:,} words; train longer, or with another optim.lr"


def more_unknown(share: float, own: Callable[[], float]) -> float | None:
    """The share of unknown tokens of a run's ``own`` text, if that of another text is clearly above it.

    None otherwise, and if the own text cannot be read. It is read only if the other text has many.
    """
    if share <= _FEW_UNKNOWN:
        return None
    try:
        found = own()
    except HighrankError:
        return None
    return found if share > _FEW_UNKNOWN + _AS_MANY * found else None


def unknown_note(share: float, own: float | None) -> list[str]:
    """A warning about a text with far more unknown tokens than the run's ``own`` test split; [] for None."""
    if own is None:
        return []
    return [
        f"warning: {share:.1%} of the tokens are unknown to the run, and {own:.1%} of its own test split."
        " They all count as one word, <unk>, so that the perplexities of the two texts do not compare."
    ]


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
