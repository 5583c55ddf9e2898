"""Evaluations of several runs side by side, with paired bootstrap p-values against the first run."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lm import bootstrap
from lm.arrays import Floats
from lm.bootstrap import Interval, Resamples, by_unit
from lm.errors import ConfigError, DataError, visible
from lm.results import Merged
from lm.runs.evaluations import Evaluation, JsonObject, evaluation_at, load_evaluation, lookup, run_of
from lm.runs.inputs import require_program, saved_settings
from lm.runs.overview import unfinished_state
from lm.runs.pairing import paired
from lm.runs.pooling import OverSeeds, PooledRuns, UnitSums, pooled

Keys = tuple[tuple[str, ...], ...]
PartSums = dict[str, tuple[Floats, Floats]]  # of each part of a text by score, and the sizes of the parts


@dataclass(frozen=True)
class ComparedRun:
    """A run in a comparison.

    ``evaluation`` is the file name of its evaluation, and ``facts`` are the shown fields of it.
    ``unfinished`` is the state of a training that has not ended as planned, else "". ``interval`` is the 95 %
    interval of a score. ``p`` and ``change`` are against the first run, which lacks them. ``change`` has a
    difference and its interval, for a perplexity relative to the first: -0.1 is 10 % lower. P-values are None
    below 5 units, or if both runs are ``near_guessing``.
    """

    run: str
    evaluation: str
    facts: Merged[JsonObject]
    near_guessing: bool
    unfinished: str
    p: Mapping[str, float | None]
    interval: Mapping[str, Interval | None]
    change: Mapping[str, Interval | None]

    def score(self, key: str) -> Any:
        """A score or another fact by its path, such as ``bleu/1/precision``; None without it."""
        return lookup(self.facts, key.split("/"))

    @property
    def perplexity(self) -> float:
        """Perplexity of the run."""
        return float(self.facts["perplexity"])


@dataclass(frozen=True)
class Resampling:
    """Bootstrap of a comparison: its resamples, and the number and kind of the resampled units."""

    resamples: int
    seed: int
    unit: str
    units: int


@dataclass(frozen=True)
class ComparedRuns:
    """Result of a comparison.

    ``scores`` are the tested ones, where they depend on the evaluations. ``pools`` are the runs of each
    config, if two runs belong together.
    """

    name: str
    data: JsonObject
    bootstrap: Resampling
    runs: Sequence[ComparedRun]
    scores: Sequence[str] | None = None
    pools: Sequence[PooledRuns] | None = None


@dataclass(frozen=True)
class Comparison:
    """Comparison of the evaluations of one program.

    ``kept`` are the fields of a result that a comparison shows, and ``needed`` are further required fields.
    ``columns`` are the sums by unit. ``same`` are columns that must be equal, each with its error message.
    ``same_keys`` are config keys that must be equal for equal texts, each with its error message.
    ``unit`` names a unit of the bootstrap, and ``units_of`` returns that of every part of a text.
    ``perplexities`` are the scores whose sums are nats.
    """

    program: str
    options: str
    kept: tuple[str, ...]
    needed: Keys
    columns: Keys
    same: tuple[tuple[str, str], ...]
    unit: str
    units_of: Callable[[Evaluation], Sequence[int]]
    same_keys: tuple[tuple[str, str], ...] = ()
    perplexities: frozenset[str] = frozenset({"perplexity"})

    def open(self, runs: Sequence[Path], name: str | None) -> tuple[str, list[Evaluation]]:
        """Name of an evaluation, as :func:`lm.runs.pairing.paired` has it, and that of each run, of one text.

        A file ``RUN/evaluation/NAME.json`` stands for this evaluation, instead of ``name`` or the common one.
        ConfigError for no run or an ambiguous name, DataError for different texts or a missing evaluation,
        StorageError for a run of another program.
        """
        if not runs:
            raise ConfigError("no run to compare; name at least one run folder")
        chosen = [evaluation_at(run) for run in runs]
        for run in runs:
            require_program(run_of(run), self.program)
        folders = [run for run, own in zip(runs, chosen, strict=True) if own is None]
        name, files = paired(folders, name, self.program, self.options) if folders else ("", [])
        rest = iter(files)
        places = [own or (run, next(rest)) for run, own in zip(runs, chosen, strict=True)]
        needed = (
            *(("result", key) for key in self.kept),
            *(("result", "data", "sha256"), ("result", "vocabulary_sha256")),
            *(("result", *keys) for keys in self.needed),
        )
        found = [
            replace(load_evaluation(*place, needed, self.columns, self.program), run=str(run))
            for run, place in zip(runs, places, strict=True)
        ]
        for other in found[1:]:
            self._require_same(found[0], other)
        return chosen[0][1] if chosen[0] else name, found

    def compared(
        self,
        name: str,
        evaluations: Sequence[Evaluation],
        sums: Callable[[Evaluation], PartSums],
        resamples: int,
        seed: int,
    ) -> ComparedRuns:
        """Compare the evaluations of :meth:`open`, of which the first is the baseline.

        ``sums`` returns the sums of each part of the text, and the sizes of the parts, by score. ConfigError
        for fewer than 1,000 resamples.
        """
        units = self.units_of(evaluations[0])
        counts = Resamples(len(set(units)), resamples, seed)
        # neighbouring parts of a unit are resampled together
        by_run = [
            {
                score: (by_unit(units, values), by_unit(units, sizes))
                for score, (values, sizes) in sums(one).items()
            }
            for one in evaluations
        ]
        return ComparedRuns(
            name=name,
            data=evaluations[0].result["data"],
            bootstrap=Resampling(resamples, seed, self.unit, counts.units),
            runs=[
                self._row(one, own, evaluations[0], by_run[0], counts)
                for one, own in zip(evaluations, by_run, strict=True)
            ],
            pools=[self._of_nats(pool) for pool in pooled(evaluations, by_run, counts)] or None,
        )

    def _of_nats(self, pool: PooledRuns) -> PooledRuns:
        """A pool whose nats are converted."""
        scores = {
            score: OverSeeds(*map(math.exp, found)) if score in self.perplexities else found
            for score, found in pool.scores.items()
        }
        return replace(pool, scores=scores, change=self._shown(pool.change, math.expm1))

    def _row(
        self,
        evaluation: Evaluation,
        own: UnitSums,
        first: Evaluation,
        base: UnitSums,
        counts: Resamples,
    ) -> ComparedRun:
        """A run with its p-values, changes and intervals by score, from (R, U) resamples of the units."""
        pairs = {} if evaluation is first else {
            score: (values - base[score][0], sizes) for score, (values, sizes) in own.items()
        }  # fmt: skip
        p = bootstrap.p_values(pairs, counts)
        noise = evaluation.near_guessing and first.near_guessing
        return ComparedRun(
            run=evaluation.run,
            evaluation=evaluation.name,
            facts={key: evaluation.result[key] for key in self.kept},
            near_guessing=evaluation.near_guessing,
            unfinished=unfinished_state(run_of(evaluation.run)),
            p=dict.fromkeys(p) if noise else p,
            interval=self._shown(bootstrap.intervals(own, counts), math.exp),
            change=self._shown(bootstrap.intervals(pairs, counts), math.expm1),
        )

    def _shown(
        self, found: Mapping[str, Interval | None], of_nats: Callable[[float], float]
    ) -> dict[str, Interval | None]:
        """Intervals, those of nats converted."""
        return {
            score: Interval(*map(of_nats, interval)) if interval and score in self.perplexities else interval
            for score, interval in found.items()
        }

    def _require_same(self, first: Evaluation, other: Evaluation) -> None:
        names = f"{other.run} and {first.run}"
        if other.result["vocabulary_sha256"] != first.result["vocabulary_sha256"]:
            raise DataError(
                f"{names}: their vocabularies differ, so they count other tokens; compare equal ones"
            )
        if other.result["data"]["sha256"] != first.result["data"]["sha256"]:
            runs = [saved_settings(run_of(one.run)) for one in (first, other)]
            for key, problem in self.same_keys:
                values = [run[key].value for run in runs if key in run]
                if len(set(values)) > 1:
                    raise DataError(f"{names}: {problem}")
            sources = [str(one.result["data"].get("source", "")) for one in (other, first)]
            named = f" ({visible(' and '.join(sources))})" if sources[0] != sources[1] else ""
            raise DataError(
                f"{names}: evaluated on different data{named}; run `{self.program} evaluate` on the same data"
            )
        for column, problem in self.same:
            if first.contexts[column] != other.contexts[column]:
                raise DataError(f"{names}: {problem}")
