"""Continuous cache: recent words, weighted by the similarity of their contexts (Grave et al. 2017).

    p(w) = (1 − λ) p_model(w) + λ Σ_i 1[w = x_i] exp(θ h · h_i) / Σ_i exp(θ h · h_i)

The sums are over the last N words x_i before the predicted one, and h_i is the state that predicted x_i. So a
token is scored before the cache contains it. Before the first word the cache is empty and p is the model's.
Nothing is trained: θ and λ are chosen on the validation split, or given. In dynamic evaluation, states and
probabilities are those of the adapted model.

T tokens · N words in the cache · H hidden size.
"""

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from lm.arrays import Floats
from lm.errors import ConfigError, require
from lm.heads.states import Layers
from lm.language.results import CacheChoice, CacheUse, TriedCache
from lm.language.scoring import require_sums, searched_text
from lm.language.trained import TrainedLm
from lm.language.windows import Ids
from lm.numbers import shortest
from lm.steps import OnAdvance, OnProgress, Steps, no_advance, no_progress

StatesRead = tuple[Layers, Tensor]  # states (n, 1, H) of a window, and the tokens (n,) that they predict
Readings = Callable[[Ids], Generator[StatesRead]]

_OF_SHORT_STATES = (7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 70.0, 100.0)  # an activation penalty shortens states
THETAS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, *_OF_SHORT_STATES)
SHARES = tuple(round(0.02 * step, 2) for step in range(31))  # λ; 0 = without the cache
MOST_WORDS = 1 << 40
MOST_THETA = 1e6  # times a product of two states, still far below the largest float64
_BLOCK = 1 << 22  # similarities that are computed at once


@dataclass(frozen=True)
class CacheSetting:
    """N, and θ and λ, or None to choose both on validation. ConfigError for values out of range."""

    size: int
    theta: float | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        sizes = f"must be a number of words from 1 to {MOST_WORDS:,}"
        require(1 <= self.size <= MOST_WORDS, f"--cache {self.size}: {sizes}")
        require((self.theta is None) == (self.share is None), "--cache: give both θ and λ, or neither")
        if self.theta is not None and self.share is not None:
            thetas = f"must be at least 0 and at most {MOST_THETA:,.0f}"
            require(0 <= self.theta <= MOST_THETA, f"--cache: θ = {self.theta}: {thetas}")
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
    def name(self) -> str:
        """Suffix of the name of a result."""
        numbers = [shortest(number) for number in (self.theta, self.share) if number is not None]
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
    readings: Iterable[StatesRead],
    size: int,
    thetas: Sequence[float],
    *,
    advance: OnAdvance = no_advance,
) -> CacheScores:
    """Score the windows of a text with a cache of ``size`` words. Memory for the cache is O(N·H).

    DivergenceError if the probabilities of a token do not sum to one over the vocabulary.
    """
    head = trained.model.head
    model, cache = [np.empty(0)], [np.empty((len(thetas), 0))]
    keys = torch.empty(0, head.hidden_size, dtype=torch.float64, device=trained.device)
    words = torch.empty(0, dtype=torch.long, device=trained.device)
    for hidden, targets in readings:
        with torch.no_grad():
            log_probs = head.log_probs(hidden)[:, 0].double()
        require_sums(log_probs.exp().sum(1))
        states = hidden.last[:, 0].double()
        keys, words = torch.cat((keys, states)), torch.cat((words, targets))
        rows = max(1, _BLOCK // len(keys))
        new = range(len(keys) - len(states), len(keys))
        parts = (new[first : first + rows] for first in range(0, len(new), rows))
        cache.extend(_cached(keys, words, part, size, thetas) for part in parts)
        model.append(log_probs.gather(1, targets[:, None])[:, 0].cpu().numpy())
        keys, words = keys[-size:], words[-size:]
        advance(len(targets))
    return CacheScores(np.concatenate(model), np.concatenate(cache, 1))


def _cached(keys: Tensor, words: Tensor, part: range, size: int, thetas: Sequence[float]) -> Floats:
    """Log-probabilities (number of θ, n) of the words at the n places of ``part`` by the cache.

    The cache of a place has the ``size`` states (M, H) and words (M,) before it, and not its own.
    DivergenceError if the weights of a cache do not sum to one.
    """
    place, own = torch.arange(len(keys), device=keys.device), slice(part.start, part.stop)
    age = place[own, None] - place
    outside = (age < 1) | (age > size)
    filled = ~outside.all(1)
    other = words[own, None] != words
    scores = keys[own] @ keys.T
    found = []
    for theta in thetas:
        weights = (theta * scores).masked_fill_(outside, -math.inf).log_softmax(1)  # nan: an empty cache
        require_sums(weights[filled].exp().sum(1))  # so that a mixture with the model has the sum one
        found.append(weights.masked_fill_(outside | other, -math.inf).logsumexp(1))
    return torch.stack(found).cpu().numpy()


def cached_nll(
    trained: TrainedLm,
    ids: Ids,
    setting: CacheSetting,
    readings: Readings,
    advance: OnAdvance = no_advance,
    progress: OnProgress = no_progress,
) -> tuple[CacheUse, Floats]:
    """The setting, with its search if it leaves θ and λ open, and −log P of every token in nats.

    ``readings`` returns the windows of a text by the fixed or adapted model. ``progress`` is that of the
    search.
    """
    if setting.theta is None or setting.share is None:
        choice = search_cache(trained, setting.size, readings, progress)
    else:
        choice = CacheChoice(setting.theta, setting.share)
    with closing(readings(ids)) as windows:
        scores = cache_scores(trained, windows, setting.size, [choice.theta], advance=advance)
    return CacheUse(setting.size, choice), scores.nll(0, choice.share)


def search_cache(
    trained: TrainedLm, size: int, readings: Readings, progress: OnProgress = no_progress
) -> CacheChoice:
    """The best θ and λ of the grid on the first tokens of the run's own validation split, in one pass."""
    source, ids = searched_text(trained)
    with closing(readings(ids)) as windows:
        scores = cache_scores(trained, windows, size, THETAS, advance=Steps(len(ids), progress).advance)
    tokens = len(scores.model)
    searched = [  # the best λ of every θ
        min(
            (TriedCache(theta, share, float(scores.nll(place, share).sum()) / tokens) for share in SHARES),
            key=attrgetter("nll"),
        )
        for place, theta in enumerate(THETAS)
    ]
    best = min(searched, key=attrgetter("nll"))
    return CacheChoice(best.theta, best.share, searched, tokens, source)
