"""Losses directly after surprises: the recovery hypothesis of Krause et al. (2016).

They find that an mLSTM has smaller losses than an LSTM after a large loss, by more than the average
difference. Melis et al. (2020, §4.2) find no such effect for the Mogrifier.

N tokens.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lm.bootstrap import half_interval
from lm.console.tables import Table
from lm.errors import ConfigError, DataError

if TYPE_CHECKING:
    from lm.language.scoring import Floats

STEPS = 5  # tokens after a surprise


def recovery(losses: "Mapping[str, Floats]", share: float = 0.1) -> dict[str, Any]:
    """Compare losses after surprises, which are the ``share`` of the tokens with the largest losses.

    Surprises have the largest mean over all models, so that all models are compared at the same positions.

    Args:
        losses: losses of every model by name, in nats, of the same tokens (N,).
        share: above 0, at most 1.

    Returns:
        ``surprises``: their number. ``least``: the smallest mean loss of a surprise.
        ``runs``, for every model: ``mean`` loss, and ``after``, its means 1 to 5 tokens after surprises.
        ``gain`` and ``gain_after`` are the reductions of both against the first model. ``half_interval`` is
        half the 95 % interval of ``gain_after``. A model recovers better if ``gain_after`` exceeds ``gain``.

    Raises:
        ConfigError: a share out of range.
        DataError: fewer than two surprises with 5 tokens after them.
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
        runs[name] = {
            "mean": float(nll.mean()),
            "after": [float(nll[at + step].mean()) for step in range(1, STEPS + 1)],
            "gain": float((first - nll).mean()),
            "gain_after": [float(gain.mean()) for gain in gains],
            "half_interval": [half_interval(gain) for gain in gains],
        }
    return {"share": share, "surprises": len(at), "least": float(mean[at].min()), "runs": runs}


def recovery_tables(result: Mapping[str, Any]) -> list[Table | str]:
    """Table with a row per model."""
    rows = [
        {
            "model": name,
            "nats a token": run["mean"],
            **{f"{step + 1} after": run["after"][step] for step in range(STEPS)},
            "gain": f"{run['gain']:.4f}",
            "gain 1 after": f"{run['gain_after'][0]:.4f} ± {run['half_interval'][0]:.4f}",
        }
        for name, run in result["runs"].items()
    ]
    title = f"After {result['surprises']:,} surprises of {result['least']:.1f} nats or more"
    return [
        Table(title, rows),
        "gains are against the first model; a model with better recovery gains more after surprises",
    ]
