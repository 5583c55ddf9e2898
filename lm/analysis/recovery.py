"""Losses directly after surprises: the recovery hypothesis of Krause et al. (2016).

They find that an mLSTM has smaller losses than an LSTM after a large loss, by more than the average
difference. Melis et al. (2020, §4.2) find no such effect for the Mogrifier.

N tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lm.arrays import Floats, Ints
from lm.bootstrap import FEWEST_UNITS, TAILS, Interval, Resamples
from lm.console.options import RESAMPLES
from lm.console.tables import Table
from lm.errors import DataError, require
from lm.language.evaluate import BLOCK

STEPS = 5  # tokens after a surprise


@dataclass(frozen=True)
class Recovery:
    """Losses of a model in nats, and its gains against the first model.

    ``mean`` is over all tokens. ``after`` has the means 1 to 5 tokens after surprises. ``gain`` and
    ``gain_after`` are the reductions of both. A model recovers better if ``gain_after`` exceeds ``gain``:
    ``excess_after`` has the differences with 95 % intervals by resampled blocks of text, None below 5 blocks.
    """

    mean: float
    after: Sequence[float]
    gain: float
    gain_after: Sequence[float]
    excess_after: Sequence[Interval | None]


@dataclass(frozen=True)
class Surprises:
    """Measured surprises: share of the tokens, number, smallest mean loss of one, blocks of text with one."""

    share: float
    surprises: int
    least: float
    blocks: int


def require_share(share: float) -> None:
    """Raise ConfigError for a share of surprises out of range."""
    require(0 < share <= 1, f"--share {share:g}: must be above 0 and at most 1")


def recovery(
    losses: Mapping[str, Floats], share: float = 0.1, resamples: int = RESAMPLES
) -> tuple[Surprises, dict[str, Recovery]]:
    """Compare losses after surprises, which are the ``share`` of the tokens with the largest losses.

    Surprises have the largest mean over all models, so that all models are compared at the same positions.
    The last 5 tokens are left out.
    ``losses`` of every model are in nats, of the same tokens (N,). ConfigError for a share out of range,
    DataError for fewer than two surprises with 5 tokens after them.
    """
    require_share(share)
    first, *_ = losses.values()
    mean = np.mean(list(losses.values()), 0)
    count = max(1, round(share * len(mean)))
    at = np.sort(np.argsort(-mean, kind="stable")[:count])
    at = at[at < len(mean) - STEPS]
    if len(at) < 2:
        raise DataError(f"{len(mean)} tokens have too few surprises; name a longer text, or raise --share")
    blocks = len(np.unique(at // BLOCK))
    counts = Resamples((len(mean) - 1) // BLOCK + 1, resamples, seed=1)
    runs = {}
    for name, nll in losses.items():
        gain = first - nll
        runs[name] = Recovery(
            mean=float(nll.mean()),
            after=[float(nll[at + step].mean()) for step in range(1, STEPS + 1)],
            gain=float(gain.mean()),
            gain_after=[float(gain[at + step].mean()) for step in range(1, STEPS + 1)],
            excess_after=_excesses(gain, at, counts) if blocks >= FEWEST_UNITS else [None] * STEPS,
        )
    return Surprises(len(at) / len(mean), len(at), float(mean[at].min()), blocks), runs


def _excesses(gain: Floats, at: Ints, counts: Resamples) -> list[Interval]:
    """Mean gains 1 to 5 tokens after the places ``at``, less the mean gain, of tokens (N,).

    Resamples without a place are left out.
    """
    block, size = np.arange(len(gain)) // BLOCK, counts.units
    places = counts @ np.bincount(block[at], minlength=size)
    usual, drawn = counts @ np.bincount(block, gain) / (counts @ np.bincount(block)), places > 0
    found = []
    for step in range(1, STEPS + 1):
        after = counts @ np.bincount(block[at], gain[at + step], minlength=size)
        ends = np.quantile(after[drawn] / places[drawn] - usual[drawn], TAILS).tolist()
        found.append(Interval(float(gain[at + step].mean() - gain.mean()), *ends))
    return found


def recovery_tables(surprises: Surprises, runs: Mapping[str, Recovery]) -> list[Table | str]:
    """Table with a row per model."""
    rows = [
        {
            "model": name,
            "nats a token": run.mean,
            **{f"{step} after": loss for step, loss in enumerate(run.after, start=1)},
            "gain in nats": run.gain,
            "gain 1 after, nats": run.gain_after[0],
            "difference, nats": run.gain_after[0] - run.gain,
            "95 % from, nats": (interval := run.excess_after[0]) and interval.low,
            "to, nats": interval and interval.high,
        }
        for name, run in runs.items()
    ]
    title = f"After {surprises.surprises:,} surprises of {surprises.least:.1f} nats or more"
    few = (
        f"no intervals: a bootstrap needs surprises in at least {FEWEST_UNITS} blocks of {BLOCK:,} tokens,"
        f" but {surprises.blocks} have any"
    )
    return [
        Table(title, rows),
        "gains are against the first model; a positive difference of gains is a better recovery",
        *([few] if surprises.blocks < FEWEST_UNITS else []),
    ]
