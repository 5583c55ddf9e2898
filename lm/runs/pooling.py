"""Runs that differ in ``train.seed`` only: means over seeds, and tests that also resample the seeds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lm.arrays import Floats
from lm.bootstrap import FEWEST_UNITS, Interval, interval_of, two_sided
from lm.runs.evaluations import Evaluation, evaluation_at
from lm.runs.inputs import RESUMABLE, saved_settings

UnitSums = Mapping[str, tuple[Floats, Floats]]  # by score the sums of the units and their sizes, each (U,)


@dataclass(frozen=True)
class PooledRuns:
    """Runs of one config with several seeds.

    ``scores`` has the mean over the seeds, the lowest and the highest. That of a perplexity is the mean of
    nats. ``p`` and ``change`` are those of :class:`lm.runs.compare.ComparedRun`, against the first pool.
    """

    runs: Sequence[str]
    seeds: Sequence[int]
    scores: Mapping[str, Interval]
    p: Mapping[str, float | None]
    change: Mapping[str, Interval | None]


def pooled(
    evaluations: Sequence[Evaluation], sums: Sequence[UnitSums], counts: Floats, seed: int
) -> list[PooledRuns]:
    """Pools in the order of their first runs, with scores in nats; [] if no two runs belong together.

    Every resample draws units of the text, the same ones for all pools, and for each pool as many seeds as it
    has.

    Args:
        evaluations: one of each run.
        sums: those of each run.
        counts: counts of the units from :func:`lm.bootstrap.draws`, (R, U).
        seed: seed of the draws of seeds.
    """
    pools: dict[str, list[int]] = {}
    for number, evaluation in enumerate(evaluations):
        pools.setdefault(_experiment(evaluation), []).append(number)
    if len(pools) == len(evaluations):
        return []
    rng, found = np.random.default_rng([seed, 1]), list[PooledRuns]()
    first, base = list[Evaluation](), dict[str, Floats]()
    for numbers in pools.values():
        members = [evaluations[number] for number in numbers]
        scores, resampled = _scores([sums[number] for number in numbers], counts, rng)
        tested = {score: values - base[score] for score, values in resampled.items() if first}
        known = counts.shape[1] >= FEWEST_UNITS and not all(one.near_guessing for one in first + members)
        found.append(
            PooledRuns(
                runs=[one.run for one in members],
                seeds=[one.result["seed"] for one in members],
                scores=scores,
                p={score: two_sided(values) if known else None for score, values in tested.items()},
                change={
                    score: interval_of(scores[score].estimate - found[0].scores[score].estimate, values)
                    if counts.shape[1] >= FEWEST_UNITS
                    else None
                    for score, values in tested.items()
                },
            )
        )
        first, base = first or members, base or resampled
    return found


def _scores(
    sums: Sequence[UnitSums], counts: Floats, rng: np.random.Generator
) -> tuple[dict[str, Interval], dict[str, Floats]]:
    """Mean, lowest and highest score of S runs, and the (R,) resampled means, by score."""
    runs = len(sums)
    drawn = rng.multinomial(runs, np.full(runs, 1 / runs), size=len(counts)) / runs  # (R, S)
    found, resampled = dict[str, Interval](), dict[str, Floats]()
    for score, (_, sizes) in sums[0].items():
        values = np.stack([own[score][0] for own in sums], 1)  # (U, S)
        each = values.sum(0) / sizes.sum()
        found[score] = Interval(float(each.mean()), float(each.min()), float(each.max()))
        resampled[score] = (counts @ values * drawn).sum(1) / (counts @ sizes)
    return found, resampled


def _experiment(evaluation: Evaluation) -> str:
    """Key of a pool: the config without its seeds, and the name of the evaluated weights."""
    path = Path(evaluation.run)
    run, _ = evaluation_at(path) or (path, "")
    settings = {key: setting.value for key, setting in saved_settings(run).items()}
    free = RESUMABLE | {"train.seed", "decode.seed"}
    if not settings or evaluation.result.get("members"):
        return evaluation.run
    return json.dumps(
        [evaluation.result["checkpoint"], {key: settings[key] for key in sorted(settings.keys() - free)}],
        default=str,
    )
