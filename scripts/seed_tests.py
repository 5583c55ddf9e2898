"""Tests of heads over seeds, from the nats by block or dialog that studies store in results/*.json."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from table_forms import p_value

from lm.bootstrap import draws
from lm.runs.pooling import Sums, welch

RESAMPLES = 10_000


def seed_tests(entries: Sequence[Any], baselines: Sequence[str]) -> str:
    """A row for every head with two or more seeds: nats ahead of each baseline, 95 % interval and p-value.

    An entry without units does not count, because its text cannot be resampled.
    """
    pools = {label: own for label, own in _pools(entries).items() if len(own) > 1}
    against = [label for label in baselines if label in pools]
    heads = [f"nats ahead of {label}" for label in against]
    lines = [f"| {' | '.join(['head', 'seeds', *heads])} |", "|---" * (2 + len(heads)) + "|"]
    for label, own in pools.items():
        cells = [_cell(own, pools[base]) if label != base else "none" for base in against]
        seeds = ", ".join(map(str, sorted(own)))
        lines.append(f"| {' | '.join([label, seeds, *cells])} |")
    return "\n".join(lines)


def _pools(entries: Sequence[Any]) -> dict[str, dict[int, Sums]]:
    """Nats and tokens by unit, by label and seed."""
    pools: dict[str, dict[int, Sums]] = {}
    for entry in entries:
        if "units" in entry:
            (seed,) = entry["seeds"]
            columns = (np.array(entry["units"][name].split(), np.float64) for name in ("nats", "tokens"))
            pools.setdefault(entry["label"], {})[seed] = (next(columns), next(columns))
    return pools


def _cell(own: dict[int, Sums], base: dict[int, Sums]) -> str:
    runs, baseline = list(own.values()), list(base.values())
    counts = draws(len(runs[0][0]), RESAMPLES, seed=1)
    p, change = welch(runs, baseline, counts)
    return f"{-change.estimate:.3f} ± {(change.high - change.low) / 2:.3f}, p = {p_value(p)}"
