"""Runs of one config except their seeds, as one: means over seeds, with tests of their differences."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from lm.bootstrap import FEWEST_UNITS, Interval, Resamples
from lm.config.settings import DEFAULT, Setting, Settings
from lm.errors import StorageError
from lm.runs.contrasts import ScoreSums, means, welch
from lm.runs.evaluations import Evaluation, run_of, unhashed
from lm.runs.inputs import WITHOUT_EFFECT, saved_settings

T = TypeVar("T")
UnitSums = Mapping[str, ScoreSums]  # by score
# config keys in which runs of one pool may differ; a measurement chooses the products, in decoding, too
FREE_KEYS = WITHOUT_EFFECT | {"train.seed", "train.log_every", "head.products"}
FREE_DECODE_KEYS = ("products", "seed")  # keys that are not part of a way of decoding
_ORIGIN, _ORIGINS = "train.start_from", 8  # runs from which a run was finetuned, one after the other


class OverSeeds(NamedTuple):
    """A score of several trainings. The mean of a perplexity is the exponential of mean nats."""

    mean: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class PooledRuns:
    """Runs of one config and several seeds.

    ``p`` and ``change`` are against the first pool, which lacks them. They are None if one of the two has a
    single seed, if all runs of both are near guessing, and below 5 units.
    """

    runs: Sequence[str]
    seeds: Sequence[int]
    scores: Mapping[str, OverSeeds]
    p: Mapping[str, float | None]
    change: Mapping[str, Interval | None]


class _Experiment(NamedTuple):
    config: Settings
    evaluation: str

    def same_as(self, other: "_Experiment") -> bool:
        """True for equal evaluations and configs. A key that one version lacks must be unset in the other."""
        pairs = [(self.config.get(key), other.config.get(key)) for key in self.config | other.config]
        return self.evaluation == other.evaluation and all(_agree(*pair) for pair in pairs)


def _agree(one: Setting | None, other: Setting | None) -> bool:
    if one and other:
        return one.value == other.value
    known = one or other
    return known is not None and known.where == DEFAULT


class _Pool(NamedTuple):
    members: Sequence[Evaluation]
    sums: Sequence[UnitSums]

    def of(self, score: str) -> list[ScoreSums]:
        """The sums of a score of every run."""
        return [own[score] for own in self.sums]


def pooled(
    evaluations: Sequence[Evaluation], sums: Sequence[UnitSums], counts: Resamples
) -> list[PooledRuns]:
    """Pools in the order of their first runs, with scores in nats; [] if no two runs belong together.

    Runs of one config of which two have one seed are no pool, since they are not independent.

    Args:
        evaluations: one of each run.
        sums: those of each run.
        counts: counts of the units in resamples.
    """
    experiments = [_experiment(evaluation) for evaluation in evaluations]

    def together(one: int, other: int) -> bool:
        first, second = experiments[one], experiments[other]
        return first is not None and second is not None and first.same_as(second)

    groups = list[list[int]]()
    for group in pairwise_groups(range(len(evaluations)), together):
        seeds = {evaluations[number].result["seed"] for number in group}
        groups += [group] if len(seeds) == len(group) else [[number] for number in group]
    groups.sort()
    if len(groups) == len(evaluations):
        return []
    pools = [_Pool([evaluations[n] for n in group], [sums[n] for n in group]) for group in groups]
    return [_described(pool, pools[0], counts) for pool in pools]


def pairwise_groups(items: Iterable[T], together: Callable[[T, T], bool]) -> list[list[T]]:
    """Groups of items that all belong ``together`` pair by pair, in the order of their first items."""
    groups: list[list[T]] = []
    for item in items:
        own = next((group for group in groups if all(together(item, one) for one in group)), None)
        if own is None:
            groups.append(own := [])
        own.append(item)
    return groups


def _described(pool: _Pool, first: _Pool, counts: Resamples) -> PooledRuns:
    scores, p, change = dict[str, OverSeeds](), dict[str, float | None](), dict[str, Interval | None]()
    guesses = all(one.near_guessing for one in (*pool.members, *first.members))
    for score in pool.sums[0]:
        own = means(pool.of(score))
        scores[score] = OverSeeds(float(own.mean()), float(own.min()), float(own.max()))
        if pool is not first:
            few = counts.units < FEWEST_UNITS or min(len(pool.sums), len(first.sums)) < 2
            tested = None if few or guesses else welch(pool.of(score), first.of(score), counts)
            p[score], change[score] = tested or (None, None)
    return PooledRuns(
        runs=[one.run for one in pool.members],
        seeds=[one.result["seed"] for one in pool.members],
        scores=scores,
        p=p,
        change=change,
    )


def _experiment(evaluation: Evaluation) -> _Experiment | None:
    """The config of a run without its seed, and the options of the evaluation.

    None for ensembles and for runs whose config is lost or damaged, which belong to no pool.
    """
    result = evaluation.result
    try:
        config = _comparable(run_of(evaluation.run))
    except StorageError:
        return None
    if not config or result.get("ensemble_with"):
        return None
    decode = {
        key: value for key, value in (result.get("decode") or {}).items() if key not in FREE_DECODE_KEYS
    }
    how = [
        unhashed(str(result.get("name"))),
        *(result.get(key) for key in ("checkpoint", "method", "compat")),
    ]
    return _Experiment(config, json.dumps([decode, how], default=str, sort_keys=True))


def _comparable(run: Path, origins: int = _ORIGINS) -> Settings:
    """The settings in which the runs of a pool agree. A finetuned run has those of its origin for its path.

    Raises StorageError for a damaged config.
    """
    settings = saved_settings(run)
    config = {key: settings[key] for key in settings.keys() - FREE_KEYS if not key.startswith("decode.")}
    origin = config.get(_ORIGIN)
    if origin and origin.value and origins:
        own = _comparable(Path(str(origin.value)), origins - 1)
        values = {key: setting.value for key, setting in own.items()}
        text = json.dumps(values, default=str, sort_keys=True)
        config[_ORIGIN] = Setting(text if values else origin.value, origin.where)
    return config
