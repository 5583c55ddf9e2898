"""Entries of several seeds in tables: means with ranges, and tests over seeds."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from table_forms import Number, mean_of, p_value

from lm.bootstrap import FEWEST_UNITS, draws
from lm.errors import require
from lm.runs.contrasts import Contrasts, ScoreSums, welch
from lm.runs.pooling import pairwise_groups

Entry = Mapping[str, Any]
SERIES = ("valid_curve", "over_training")  # numbers by update, which no table over seeds has
RESAMPLES = 10_000
LEAST_P = 0.001  # below, a few seeds do not tell the tails of the distribution


def by_label(entries: Sequence[Entry]) -> list[Entry]:
    """Entries in their order. Those of one label, preset and config that have one seed each become one entry.

    Older entries have no hash of their config, and count as of the same.
    """
    return [group[0] if len(group) == 1 else _over_seeds(group) for group in _models(entries)]


def _models(entries: Sequence[Entry]) -> list[list[Entry]]:
    """The entries of each model, in their order."""
    return pairwise_groups(entries, _belong)


def _belong(entry: Entry, other: Entry) -> bool:
    """True if two entries are of one model with other seeds."""
    hashes = {one["config_sha256"] for one in (entry, other) if "config_sha256" in one}
    same = all(entry[key] == other[key] for key in ("label", "config")) and len(hashes) < 2
    return same and len(entry["seeds"]) == len(other["seeds"]) == 1 and entry["seeds"] != other["seeds"]


def _over_seeds(entries: Sequence[Entry]) -> Entry:
    """Entries of single seeds as one, with the numbers that each seed has."""
    found: dict[str, Number] = {}
    for key in dict.fromkeys(key for entry in entries for key in entry["numbers"] if key not in SERIES):
        values = [entry["numbers"].get(key) for entry in entries]
        found[key] = _of_seeds(key, [value for value in values if value is not None])
    return {**entries[0], "seeds": [entry["seeds"][0] for entry in entries], "numbers": found}


def _of_seeds(key: str, values: Sequence[Number]) -> Number:
    """Mean and range of a number, or the mean of each part of a score; None without a value."""
    if len(values) < 2:
        return values[0] if values else None
    if isinstance(values[0], Mapping):
        return {part: fmean(value[part] for value in values) for part in values[0]}
    mean = mean_of(key, values)
    whole = all(isinstance(value, int) for value in values)
    return {"mean": round(mean) if whole else mean, "lowest": min(values), "highest": max(values)}


def seed_tests(entries: Sequence[Entry], baselines: Sequence[str]) -> str:
    """Table of heads with two or more seeds: nats ahead of each baseline, 95 % interval and p-value.

    The text of an older entry without units is resampled like that of the other seeds of its head, scaled to
    its own perplexity. ConfigError for entries of different texts.
    """
    pools = _pools(entries)
    known = _sums_by_label(pools)
    against = [label for label in baselines if label in known]
    heads = [f"nats ahead of {label}" for label in against]
    lines = [f"| {' | '.join(['head', 'seeds', *heads])} |", "|---" * (2 + len(heads)) + "|"]
    if not pools:
        return "\n".join(lines)
    counts = draws(len(next(iter(known.values()))[0][0]), RESAMPLES, seed=1)
    for label, own in pools:
        runs, seeds = list(own.values()), ", ".join(map(str, sorted(own)))
        cells = ["none" if label == base else _cell(*welch(runs, known[base], counts)) for base in against]
        lines.append(f"| {' | '.join([label, seeds, *cells])} |")
    return "\n".join(lines)


def seed_shares(entries: Sequence[Entry], baseline: str, whole: str) -> str:
    """Table of heads with two or more seeds: the lead over a baseline as a share of that of another head.

    Intervals of 95 % are those of Fieller, by the tests of :func:`seed_tests`.
    """
    known = _sums_by_label(_pools(entries))
    lines = [f"| head | share of the lead of {whole} over {baseline} |", "|---|---|"]
    counts = draws(len(known[whole][0][0]), RESAMPLES, seed=1)
    for label, runs in known.items():
        if label not in (baseline, whole):
            pools = Contrasts([known[baseline], runs, known[whole]], counts)
            share, low, high = pools.ratio((1, -1, 0), (1, 0, -1))
            lines.append(f"| {label} | {share:.0%} ({low:.0%} to {high:.0%}) |")
    return "\n".join(lines).replace("%", " %")


def _pools(entries: Sequence[Entry]) -> list[tuple[str, dict[int, ScoreSums]]]:
    """Label, and nats and tokens by unit by seed, of each model of several seeds, one of which has units."""
    measured = [entry for entry in entries if "units" in entry]
    texts = {(entry["units"]["text_sha256"], entry["units"]["tokens"]) for entry in measured}
    require(len(texts) < 2, "entries of one table have other texts; train those of the older one again")
    tested = [group for group in _models(entries) if any("units" in one for one in group)]
    return [(group[0]["label"], _sums(group)) for group in tested if len(group) > 1]


def _sums_by_label(pools: Sequence[tuple[str, Mapping[int, ScoreSums]]]) -> dict[str, list[ScoreSums]]:
    """Nats and tokens by unit of every seed, of the first model of each label."""
    first: dict[str, list[ScoreSums]] = {}
    for label, own in pools:
        first.setdefault(label, list(own.values()))
    return first


def _sums(group: Sequence[Entry]) -> dict[int, ScoreSums]:
    """Nats and tokens by unit, by seed."""
    known: dict[int, ScoreSums] = {}
    for entry in group:
        if "units" in entry:
            nats, tokens = (np.array(entry["units"][name].split(), np.float64) for name in ("nats", "tokens"))
            require(len(nats) >= FEWEST_UNITS, f"{entry['label']}: the text has too few units to test")
            known[entry["seeds"][0]] = (nats, tokens)
    nats, tokens = (np.mean(column, 0) for column in zip(*known.values(), strict=True))
    scaled = {
        entry["seeds"][0]: (
            nats * (math.log(entry["numbers"]["test_perplexity"]) * tokens.sum() / nats.sum()),
            tokens,
        )
        for entry in group
        if "units" not in entry
    }
    return known | scaled


def _cell(p: float, change: Any) -> str:
    equals = "= " if p >= LEAST_P else ""
    half = (change.high - change.low) / 2
    return f"{-change.estimate:.3f} ± {half:.3f}, p {equals}{p_value(p, LEAST_P)}"
