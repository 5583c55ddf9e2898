"""Refinements of evaluation: softmax temperature, and passes with dropout on.

Both follow Melis et al. (2020). The temperature is the best on a part of the validation split. The
probabilities of the passes are averaged. Static and dynamic evaluation share both. Temperatures are chosen
without adaptation.
"""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lm.arrays import Floats
from lm.errors import ConfigError
from lm.language.cache import CacheSetting
from lm.language.model import LanguageModel
from lm.language.results import CacheUse, DropoutPasses, RefinementChoice, TemperatureChoice, TriedFactor
from lm.language.scoring import hidden_nll, searched_text, token_nll, windows_of
from lm.language.trained import TrainedLm
from lm.numbers import shortest
from lm.parallel.slices import joined_rows, own_slice

Scores = Callable[[LanguageModel | None, float], Floats]  # args: a sampler (None: the model), a temperature
Cached = Callable[[CacheSetting], tuple[CacheUse, Floats]]

MULTIPLIERS = tuple(round(1.06 - 0.02 * step, 2) for step in range(14))  # of logits (Melis et al. 2020)
FORGIVEN = 2  # patience of the search: multipliers in a row without improvement
_AROUND = ("embedding_dropout", "input_dropout", "output_dropout")  # the trunk


class Refinements(NamedTuple):
    """Requested refinements.

    ``temperature_search`` adds the result at the best temperature on validation. ``mc_samples`` adds the
    result of mean probabilities over this number of passes with dropout, at rates times ``mc_rate``. With
    both, the passes are also scored at their own best temperature on validation. ``cache`` adds the result
    with a continuous cache.
    """

    temperature_search: bool = False
    mc_samples: int = 0
    mc_rate: float = 1.0
    cache: CacheSetting | None = None

    @property
    def passes(self) -> int:
        """Number of passes over the text, including the one without dropout."""
        return (1 + self.mc_samples) * (1 + self.temperature_search) + (self.cache is not None)

    @property
    def name(self) -> str:
        """Suffix of the name of a result with refinements, each after a dot."""
        sampled = f".mc-{self.mc_samples}-rate-{shortest(self.mc_rate)}" if self.mc_samples else ""
        cached = self.cache.name if self.cache else ""
        return f"{'.temperature' if self.temperature_search else ''}{sampled}{cached}"

    def sampler(self, model: LanguageModel) -> LanguageModel | None:
        """A copy of the model with active dropout. None without MC dropout. ConfigError for bad options."""
        if self.mc_samples < 0:
            raise ConfigError(f"--mc-samples {self.mc_samples}: must be at least 0")
        if self.mc_rate != 1 and not self.mc_samples:
            raise ConfigError(f"--mc-rate {self.mc_rate:g}: does nothing without --mc-samples; give both")
        return with_dropout(model, self.mc_rate) if self.mc_samples else None

    def require_searched(self, trained: TrainedLm) -> None:
        """DataError if a parameter is chosen on the run's validation split and that cannot be read."""
        if self.temperature_search or (self.cache is not None and self.cache.theta is None):
            searched_text(trained)


def refined(
    trained: TrainedLm,
    wanted: Refinements,
    sampler: LanguageModel | None,
    scores: Scores,
    cached: Cached,
    *,
    paper: bool = False,
) -> dict[str, tuple[RefinementChoice, Floats]]:
    """The parameters of each refinement, and its −log P of every token from ``scores`` or ``cached``."""
    found: dict[str, tuple[RefinementChoice, Floats]] = {}
    if wanted.temperature_search:
        chosen = search_temperature(trained, paper=paper)
        found["temperature_search"] = chosen, scores(None, chosen.temperature)
    if sampler is not None:
        samples, rate = wanted.mc_samples, wanted.mc_rate
        one_pass = partial(scores, sampler, 1.0)
        found["mc_dropout"] = DropoutPasses(samples, rate), mean_of_passes(trained, samples, one_pass)
        if wanted.temperature_search:
            chosen = search_mc_temperature(trained, sampler, samples, paper=paper)
            one_pass = partial(scores, sampler, chosen.temperature)
            of_passes = DropoutPasses(samples, rate, chosen)
            found["mc_temperature"] = of_passes, mean_of_passes(trained, samples, one_pass)
    if wanted.cache:
        found["cache"] = cached(wanted.cache)
    return found


def search_temperature(trained: TrainedLm, *, paper: bool = False) -> TemperatureChoice:
    """The best factor on the logits on the first tokens of the run's own validation split.

    Factors fall from 1.06 to .80. The search ends after two factors in a row without improvement (Melis et
    al. 2020).
    """
    source, ids = searched_text(trained)
    own = own_slice(trained.group, windows_of(ids, paper=paper))
    read = list(trained.readings(ids, paper=paper, only=own))

    def nll_at(multiplier: float) -> Floats:
        pieces = [np.empty(0), *(hidden_nll(trained.model, *reading, 1 / multiplier) for reading in read)]
        return torch.cat(trained.group.gather_rows(torch.from_numpy(np.concatenate(pieces)))).numpy()

    return _search(nll_at, source)


def search_mc_temperature(
    trained: TrainedLm, sampler: LanguageModel, samples: int, *, paper: bool = False
) -> TemperatureChoice:
    """The best factor on the logits for the mean of passes with dropout, which run again for each factor.

    Each pass carries its own state and draws new masks for each window, as training does.
    """
    source, ids = searched_text(trained)
    score = partial(token_nll, trained, ids, paper=paper, model=sampler, window=trained.config.window.length)

    def nll_at(multiplier: float) -> Floats:
        return mean_of_passes(trained, samples, partial(score, temperature=1 / multiplier))

    return _search(nll_at, source)


def _search(nll_at: Callable[[float], Floats], source: str) -> TemperatureChoice:
    """The best factor on the text ``source``; ``nll_at`` returns nats of every token."""
    searched: list[TriedFactor] = []
    best, stale, tokens = 0, 0, 0
    for multiplier in MULTIPLIERS:
        nll = nll_at(multiplier)
        tokens = len(nll)
        searched.append(TriedFactor(multiplier, float(nll.sum()) / tokens))
        if searched[-1].nll < searched[best].nll:
            best, stale = len(searched) - 1, 0
        elif len(searched) > 1:
            stale += 1
        if stale == FORGIVEN:
            break
    multiplier = searched[best].multiplier
    return TemperatureChoice(multiplier, 1 / multiplier, searched, tokens, source)


def mean_of_passes(trained: TrainedLm, samples: int, one_pass: Callable[[], Floats]) -> Floats:
    """−log of the mean probability of every token over passes, seeded by the run's seed and their number.

    The processes of a group share the passes.
    """
    seed, group = trained.config.train.seed, trained.group
    devices = range(torch.cuda.device_count()) if trained.device.type == "cuda" else ()
    total: Floats = np.full(0, 0.0)
    for first in range(0, samples, group.size):
        count = min(group.size, samples - first)

        def passed(own: range, first: int = first) -> Tensor:
            nll = [np.empty(0)]
            with torch.random.fork_rng(devices=devices):
                for sample in own:
                    torch.manual_seed(int(np.random.default_rng((seed, first + sample)).integers(2**63)))
                    nll.append(one_pass())
            return torch.from_numpy(np.concatenate(nll))

        for nll in joined_rows(group, count, passed).view(count, -1).numpy():
            total = np.logaddexp(total, -nll) if len(total) else -nll
    return math.log(samples) - total


def with_dropout(model: LanguageModel, factor: float) -> LanguageModel:
    """A copy of the model with active dropout, rates times a factor.

    ConfigError if a rate reaches 1, or if none is above 0.
    """
    rates = {name: factor * getattr(model.config, name) for name in _AROUND}
    latent = factor * model.head.config.latent_dropout
    within = [factor * rate for rate in model.layers.dropout_rates()]
    if not (factor >= 0 and max(latent, *within, *rates.values()) < 1):
        raise ConfigError(f"--mc-rate {factor:g}: must be at least 0 and keep every dropout rate below 1")
    if not any((latent, *within, *rates.values())):
        raise ConfigError("--mc-samples: no dropout rate is above 0; leave it out, or raise --mc-rate")
    sampler = copy.deepcopy(model)
    sampler.config = model.config.model_copy(update=rates)
    sampler.head.config = model.head.config.model_copy(update={"latent_dropout": latent})
    sampler.layers.scale_dropout(factor)
    return sampler.train()
