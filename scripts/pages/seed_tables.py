"""Entries of several seeds in tables: means with ranges, and tests over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from lm.bootstrap import FEWEST_UNITS, Interval, Resamples
from lm.console.options import RESAMPLES
from lm.errors import require
from lm.runs.contrasts import Contrasts, ScoreSums, SeedSpread, means
from lm.runs.pooling import pairwise_groups
from pages.table_forms import LEAST_P, Number, markdown, mean_of, p_text

Entry = Mapping[str, Any]
SERIES = ("valid_curve", "over_training")  # numbers by update, which no table over seeds has
# Least p-value at which spreads count as alike. Few seeds seldom show a difference, so that .05 would let
# unlike ones pass; Bancroft (1964) advises .25 for such a test before another.
ALIKE = 0.25


def by_label(entries: Sequence[Entry]) -> list[Entry]:
    """Entries in their order. Those of one label, preset and config that have one seed each become one."""
    return [group[0] if len(group) == 1 else _over_seeds(group) for group in _models(entries)]


def _models(entries: Sequence[Entry]) -> list[list[Entry]]:
    """The entries of each model, in their order."""
    return pairwise_groups(entries, _belong)


def _belong(entry: Entry, other: Entry) -> bool:
    """True if two entries are of one model with other seeds."""
    same = all(entry.get(key) == other.get(key) for key in ("label", "config", "config_sha256", "measured"))
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


class SeedTests:
    """Tests of the models of a file of results, each over its seeds and the text.

    A model of one seed takes the spread over seeds within the other models, and has no test if these may
    differ in it. Entries without units are left out. ConfigError for entries of different texts, and for a
    text of few units.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        groups = _models([entry for entry in entries if "units" in entry])
        texts = {(one["units"]["text_sha256"], one["units"]["tokens"]) for group in groups for one in group}
        require(len(texts) < 2, "entries of one table have other texts; train those of the older one again")
        models = [
            _Model(group[0]["label"], {one["seeds"][0]: _sums(one) for one in group}) for group in groups
        ]
        pools = [model.runs for model in models]
        self._alike = _alike(pools)
        self._spread = SeedSpread.within(pools) if self._alike >= ALIKE else None
        self._models = models
        self._counts = Resamples(len(models[0].runs[0][0]) if models else 1, RESAMPLES, seed=1)

    def leads(self, baselines: Sequence[str]) -> str:
        """Table of nats ahead of each baseline, named by its label: 95 % interval and p-value."""
        against = [found for label in baselines if (found := self._first(label))]
        heads = [f"nats ahead of {model.label}" for model in against]
        rows = [
            [model.label, model.seeds, *(self._ahead(model, base) for base in against)]
            for model in self._models
        ]
        return markdown(["head", "seeds", *heads], rows)

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> str:
        """Table of nats by which the first label of each pair is ahead of the second, if both have units."""
        found = [(self._first(one), self._first(other)) for one, other in pairs]
        rows = [
            [one.label, one.seeds, other.label, other.seeds, self._ahead(one, other)]
            for one, other in found
            if one and other
        ]
        return markdown(["head", "seeds", "other head", "its seeds", "nats ahead"], rows)

    def grid(self, baseline: str, labels: Sequence[str], settings: Mapping[str, str]) -> str:
        """Table of nats by which each label is ahead of a baseline by setting, whose form completes both.

        Means over the seeds that each has, with the number of seeds of the label.
        """
        rows = []
        for label in labels:
            cells = [label]
            for form in settings.values():
                model, base = self._first(form.format(label)), self._first(form.format(baseline))
                cells.append(f"{_lead(model, base):.3f} ({len(model.runs)})" if model and base else "not run")
            rows.append(cells)
        return markdown(["head", *settings], rows)

    def shares(self, baseline: str, whole: str) -> str:
        """Table of the leads over a baseline as shares of that of another head, of models of several seeds.

        Intervals of 95 % are those of Fieller.
        """
        several = [model for model in self._models if len(model.by_seed) > 1]
        ends = [model for label in (baseline, whole) for model in several if model.label == label]
        rows = []
        for model in several:
            if model not in ends and len(ends) == 2:
                pools = [ends[0].runs, model.runs, ends[1].runs]
                share = Contrasts(pools, self._counts).ratio((1, -1, 0), (1, 0, -1))
                rows.append([model.label, _percent(share)])
        return markdown(["head", f"share of the lead of {whole} over {baseline}"], rows)

    def removed(self, pairs: Sequence[tuple[str, str]], change: str) -> str:
        """Table of the share of a lead that a change removes, of pairs of several seeds with and without it.

        The labels of models with the change end with ``, CHANGE``. Intervals of 95 % are those of Fieller.
        """
        rows = []
        for label, other in pairs:
            named = (other, label, f"{other}, {change}", f"{label}, {change}")
            found = [model for name in named if (model := self._first(name)) and len(model.runs) > 1]
            if len(found) == len(named):
                contrasts = Contrasts([model.runs for model in found], self._counts)
                share = contrasts.ratio((1, -1, -1, 1), (1, -1, 0, 0))
                leads = (_lead(found[1], found[0]), _lead(found[3], found[2]))
                rows.append([label, other, *(f"{lead:.3f}" for lead in leads), _percent(share)])
        return markdown(["head", "other head", "nats ahead", f"with the {change}", "share removed"], rows)

    def spreads(self) -> str:
        """Table of the standard deviation over seeds of each model of several, in nats a token."""
        rows = [
            [model.label, model.seeds, f"{float(np.std(means(model.runs), ddof=1)):.4f}"]
            for model in self._models
            if len(model.by_seed) > 1
        ]
        rows.append(["alike in all these", "", p_text(self._alike)])
        return markdown(["head", "seeds", "standard deviation over seeds, nats"], rows)

    def _first(self, label: str) -> "_Model | None":
        return next((model for model in self._models if model.label == label), None)

    def _ahead(self, model: "_Model", base: "_Model") -> str:
        if model is base:
            return "none"
        if self._spread is None and min(len(model.runs), len(base.runs)) == 1:
            return f"{_lead(model, base):.3f}, no test"
        p, change = Contrasts([base.runs, model.runs], self._counts, self._spread).test((1, -1))
        half = (change.high - change.low) / 2
        return f"{change.estimate:.3f} ± {half:.3f}, {p_text(p, LEAST_P)}"


def _alike(pools: Sequence[Sequence[ScoreSums]]) -> float:
    """P-value of equal spreads over seeds by Bartlett's test; 1 without two pools of several runs."""
    from scipy.stats import bartlett  # takes longer to load than the rest

    several = [means(runs) for runs in pools if len(runs) > 1]
    return float(bartlett(*several).pvalue) if len(several) > 1 else 1.0


@dataclass(frozen=True, eq=False)  # its arrays have no single truth value
class _Model:
    """A label, and nats and tokens by unit of every seed."""

    label: str
    by_seed: Mapping[int, ScoreSums]

    @property
    def runs(self) -> list[ScoreSums]:
        return list(self.by_seed.values())

    @property
    def seeds(self) -> str:
        return ", ".join(map(str, sorted(self.by_seed)))


def _percent(share: Interval) -> str:
    """A share with its interval, in per cent."""
    return f"{share.estimate:.0%} ({share.low:.0%} to {share.high:.0%})".replace("%", " %")


def _lead(model: _Model, base: _Model) -> float:
    """Nats by which a model is ahead of another, of means over the seeds that each has."""
    return float(means(base.runs).mean() - means(model.runs).mean())


def _sums(entry: Entry) -> ScoreSums:
    """Nats and tokens by unit."""
    nats, tokens = (np.array(entry["units"][name].split(), np.float64) for name in ("nats", "tokens"))
    require(len(nats) >= FEWEST_UNITS, f"{entry['label']}: the text has too few units to test")
    return nats, tokens
