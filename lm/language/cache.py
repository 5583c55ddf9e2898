"""Continuous cache: recent words, weighted by the similarity of their contexts (Grave et al. 2017).

    p(w) = (1 − λ) p_model(w) + λ Σ_i 1[w = x_i] exp(θ h · h_i) / Σ_i exp(θ h · h_i)

The sums are over the last N words x_i before the predicted one, and h_i is the state that predicted x_i. So a
token is scored before the cache contains it. Before the first word the cache is empty and p is the model's.
Nothing is trained: θ and λ are chosen on the validation split, or given.

T tokens · N words in the cache · H hidden size.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from lm.errors import ConfigError, DivergenceError, require
from lm.language.scoring import Floats, no_advance, searched_text
from lm.language.trained import TrainedLm
from lm.language.windows import Ids
from lm.runs.evaluations import Result

THETAS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0)
SHARES = tuple(round(0.02 * step, 2) for step in range(31))  # λ; 0 = without the cache
ROUNDING = 1e-4  # largest deviation of a sum of probabilities, which a float32 head rounds, from 1


@dataclass(frozen=True)
class CacheSetting:
    """N, and θ and λ, or None to choose both on validation. ConfigError for values out of range."""

    size: int
    theta: float | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        require(self.size >= 1, f"--cache {self.size}: the cache holds at least 1 word")
        if self.theta is not None and self.share is not None:
            require(0 <= self.theta < math.inf, f"--cache: θ = {self.theta}: must be at least 0 and finite")
            require(0 <= self.share < 1, f"--cache: λ = {self.share}: must be at least 0 and below 1")

    @classmethod
    def parse(cls, text: str) -> "CacheSetting":
        """Read ``N`` or ``N,θ,λ``. ConfigError for another form."""
        size, *numbers = text.split(",")
        try:
            if len(numbers) in (0, 2):
                return cls(int(size), *map(float, numbers))
        except ValueError:
            pass
        raise ConfigError(f"--cache {text!r}: give the number of words, or N,θ,λ as in 2000,0.3,0.1")

    @property
    def option(self) -> str:
        """The text of :meth:`parse`."""
        numbers = [] if self.theta is None else [str(self.theta), str(self.share)]
        return ",".join([str(self.size), *numbers])

    @property
    def name(self) -> str:
        """Suffix of the name of a result."""
        numbers = [] if self.theta is None else [f"{self.theta:g}", f"{self.share:g}"]
        return "-".join([".cache", str(self.size), *numbers])


@dataclass(frozen=True)
class CacheScores:
    """Log-probabilities of every scored token by the model and by the cache, for several θ."""

    model: Floats  # (T,)
    cache: Floats  # (number of θ, T); −∞ for words that are not in the cache

    def nll(self, place: int, share: float) -> Floats:
        """−log p of every token in nats, (T,), for the θ at ``place`` and λ = ``share``."""
        if not share:
            return -self.model
        mixed: Floats = np.logaddexp(math.log1p(-share) + self.model, math.log(share) + self.cache[place])
        mixed[:1] = self.model[:1]  # the cache is empty
        return -mixed


def cache_scores(
    trained: TrainedLm,
    ids: Ids,
    size: int,
    thetas: Sequence[float],
    *,
    paper: bool = False,
    advance: Callable[[int], None] = no_advance,
) -> CacheScores:
    """Score a text with a cache of ``size`` words. Memory for the cache is O(N·H).

    DivergenceError if the probabilities of a token do not sum to one over the vocabulary.
    """
    head = trained.model.head
    model, cache = [np.empty(0)], [np.empty((len(thetas), 0))]
    keys = torch.empty(0, head.hidden_size, dtype=torch.float64, device=trained.device)
    words = torch.empty(0, dtype=torch.long, device=trained.device)
    for hidden, targets in trained.readings(ids, paper=paper):
        with torch.no_grad():
            log_probs = head.log_probs(hidden)[:, 0].double()
        states = hidden.last[:, 0].double()
        keys, words = torch.cat((keys, states)), torch.cat((words, targets))
        weights = _log_weights(states, keys, size, thetas)
        _require_sums(log_probs, weights)
        same = targets[:, None] == words
        inside = weights.masked_fill(~same, -math.inf).logsumexp(2)
        model.append(log_probs.gather(1, targets[:, None])[:, 0].cpu().numpy())
        cache.append(inside.cpu().numpy())
        keys, words = keys[-size:], words[-size:]
        advance(len(targets))
    return CacheScores(np.concatenate(model), np.concatenate(cache, 1))


def _log_weights(states: Tensor, keys: Tensor, size: int, thetas: Sequence[float]) -> Tensor:
    """Log weights (number of θ, n, M) of M cached states for the last n of them; −∞ outside of the cache.

    The cache of a state has the ``size`` states before it, and not the state itself. A row without any
    is −∞ throughout.
    """
    place = torch.arange(len(keys), device=keys.device)
    age = place[-len(states) :, None] - place
    scores = states @ keys.T
    rows = [(theta * scores).masked_fill((age < 1) | (age > size), -math.inf) for theta in thetas]
    return torch.stack(rows).log_softmax(2).nan_to_num(nan=-math.inf)


def _require_sums(log_probs: Tensor, weights: Tensor) -> None:
    """Raise DivergenceError unless model and cache are distributions, so that each mixture of them is one."""
    of_model = log_probs.exp().sum(1)
    of_cache = weights.exp().sum(2)
    some = weights.isfinite().any(2)
    for sums in (of_model, of_cache[some]):
        if sums.numel() and not (sums - 1).abs().max() < ROUNDING:
            worst = float(sums[(sums - 1).abs().argmax()])
            raise DivergenceError(
                f"probabilities sum to {worst:.6f} instead of 1: the model has diverged; choose another"
                " checkpoint"
            )


def cached_nll(
    trained: TrainedLm,
    ids: Ids,
    setting: CacheSetting,
    *,
    paper: bool = False,
    advance: Callable[[int], None] = no_advance,
) -> tuple[Result, Floats]:
    """The setting, with its search if it leaves θ and λ open, and −log P of every token in nats."""
    about: Result = {"size": setting.size}
    theta, share = setting.theta, setting.share
    if theta is None or share is None:
        found = search_cache(trained, setting.size, paper=paper)
        theta, share = found["theta"], found["share"]
        about |= found
    scores = cache_scores(trained, ids, setting.size, [theta], paper=paper, advance=advance)
    return about | {"theta": theta, "share": share}, scores.nll(0, share)


def search_cache(trained: TrainedLm, size: int, *, paper: bool = False) -> Result:
    """The best θ and λ of the grid on the first tokens of the run's own validation split, in one pass."""
    source, ids = searched_text(trained)
    scores = cache_scores(trained, ids, size, THETAS, paper=paper)
    tokens = len(scores.model)
    rows = [
        {"theta": theta, "share": share, "nll": float(scores.nll(place, share).sum()) / tokens}
        for (place, theta), share in product(enumerate(THETAS), SHARES)
    ]
    best = min(rows, key=lambda row: row["nll"])
    searched = [
        min(rows[start : start + len(SHARES)], key=lambda row: row["nll"])
        for start in range(0, len(rows), len(SHARES))
    ]
    return {
        "theta": best["theta"],
        "share": best["share"],
        "searched": searched,  # the best λ of every θ
        "searched_tokens": tokens,
        "searched_on": source,
    }
