"""Losses directly after surprises: the recovery hypothesis of Krause et al. (2016).

They find that an mLSTM has smaller losses than an LSTM after a large loss, by more than the average
difference. Melis et al. (2020, §4.2) find no such effect for the Mogrifier.

N tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lm.arrays import Floats
from lm.bootstrap import half_interval
from lm.console.tables import Table
from lm.errors import ConfigError, DataError

STEPS = 5  # tokens after a surprise


@dataclass(frozen=True)
class Recovery:
    """Losses of a model in nats, and its gains against the first model.

    ``mean`` is over all tokens. ``after`` has the means 1 to 5 tokens after surprises. ``gain`` and
    ``gain_after`` are the reductions of both. ``half_interval`` is half the 95 % interval of ``gain_after``.
    A model recovers better if ``gain_after`` exceeds ``gain``.
    """

    mean: float
    after: Sequence[float]
    gain: float
    gain_after: Sequence[float]
    half_interval: Sequence[float]


@dataclass(frozen=True)
class Surprises:
    """Number of surprises, the smallest mean loss of one, and their share of the tokens."""

    share: float
    surprises: int
    least: float


def recovery(losses: Mapping[str, Floats], share: float = 0.1) -> tuple[Surprises, dict[str, Recovery]]:
    """Compare losses after surprises, which are the ``share`` of the tokens with the largest losses.

    Surprises have the largest mean over all models, so that all models are compared at the same positions.
    ``losses`` of every model are in nats, of the same tokens (N,). ConfigError for a share out of range,
    DataError for fewer than two surprises with 5 tokens after them.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"--share {share:g}: must be above 0 and at most 1")
    first, *_ = losses.values()
    mean = np.mean(list(losses.values()), 0)
    count = max(1, round(share * len(mean)))
    at = np.sort(np.argsort(-mean, kind="stable")[:count])
    at = at[at < len(mean) - STEPS]
    if len(at) < 2:
        raise DataError(f"{len(mean)} tokens have too few surprises; name a longer text, or raise --share")
    runs = {}
    for name, nll in losses.items():
        gains = [first[at + step] - nll[at + step] for step in range(1, STEPS + 1)]
        runs[name] = Recovery(
            mean=float(nll.mean()),
            after=[float(nll[at + step].mean()) for step in range(1, STEPS + 1)],
            gain=float((first - nll).mean()),
            gain_after=[float(gain.mean()) for gain in gains],
            half_interval=[half_interval(gain) for gain in gains],
        )
    return Surprises(share, len(at), float(mean[at].min())), runs


def recovery_tables(surprises: Surprises, runs: Mapping[str, Recovery]) -> list[Table | str]:
    """Table with a row per model."""
    rows = [
        {
            "model": name,
            "nats a token": run.mean,
            **{f"{step} after": loss for step, loss in enumerate(run.after, start=1)},
            "gain": f"{run.gain:.4f}",
            "gain 1 after": f"{run.gain_after[0]:.4f} ± {run.half_interval[0]:.4f}",
        }
        for name, run in runs.items()
    ]
    title = f"After {surprises.surprises:,} surprises of {surprises.least:.1f} nats or more"
    return [
        Table(title, rows),
        "gains are against the first model; a model with better recovery gains more after surprises",
    ]
