"""Evaluations of several runs side by side, with paired bootstrap p-values against the first run."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from numpy.typing import ArrayLike

from lm import bootstrap
from lm.bootstrap import Floats, Interval, by_unit
from lm.errors import ConfigError, DataError
from lm.runs.evaluations import Evaluation, Result, common_name, evaluation_at, guesses, load_evaluation

Keys = tuple[tuple[str, ...], ...]
PartSums = dict[str, tuple[Floats, Floats]]  # of each part of a text by score, and the sizes of the parts


@dataclass(frozen=True)
class Comparison:
    """Comparison of the evaluations of one program.

    ``kept`` are the fields of a result that a comparison shows, and ``needed`` are further required fields.
    ``columns`` are the sums by unit. ``same`` are columns that must be equal, each with its error message.
    ``perplexities`` are the scores whose sums are nats.
    """

    program: str
    options: str
    kept: tuple[str, ...]
    needed: Keys
    columns: Keys
    same: tuple[tuple[str, str], ...]
    perplexities: frozenset[str] = frozenset({"perplexity"})

    def open(self, runs: Sequence[Path], name: str | None) -> tuple[str, list[Evaluation]]:
        """Name of the first evaluation, and the evaluation of each run, all of the same text.

        A file ``RUN/evaluation/NAME.json`` stands for this evaluation, instead of ``name`` or the common one.
        ConfigError for no run or an ambiguous name, DataError for different texts or a missing evaluation.
        """
        if not runs:
            raise ConfigError("no run to compare; name at least one run folder")
        chosen = [evaluation_at(run) for run in runs]
        if folders := [run for run, own in zip(runs, chosen, strict=True) if own is None]:
            name = name or common_name(folders, self.program, self.options)
        places = [own or (run, str(name)) for run, own in zip(runs, chosen, strict=True)]
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
        return places[0][1], found

    def rows(
        self,
        evaluations: Sequence[Evaluation],
        sums: Callable[[Evaluation], PartSums],
        units: ArrayLike,
        counts: Floats,
    ) -> list[Result]:
        """Kept fields of every run, its p-values, changes and intervals by score.

        ``interval`` is the 95 % interval of a score. ``p`` and ``change`` are against the first run, which
        lacks them. ``change`` has a difference and its interval, for a perplexity relative to the first:
        -0.1 is 10 % lower. P-values are None if both runs are near guessing.

        Args:
            evaluations: evaluations of :meth:`open`.
            sums: returns the sums of each part of the text, and the sizes of the parts, by score.
            units: the unit of every part, such as its dialog. Neighbouring parts of a unit are resampled
                together.
            counts: (R, U) resamples of the units.
        """
        first, rows = evaluations[0], list[Result]()
        base = sums(first)
        for evaluation in evaluations:
            own = sums(evaluation)
            pairs = {} if evaluation is first else {
                score: (by_unit(units, values - base[score][0]), by_unit(units, sizes))
                for score, (values, sizes) in own.items()
            }  # fmt: skip
            parts = {s: (by_unit(units, values), by_unit(units, sizes)) for s, (values, sizes) in own.items()}
            p = bootstrap.p_values(pairs, counts)
            near = guesses(evaluation)
            row = {"run": evaluation.run} | {key: evaluation.result[key] for key in self.kept}
            row |= {
                "near_guessing": near,
                "p": dict.fromkeys(p) if near and guesses(first) else p,
                "interval": self._shown(bootstrap.intervals(parts, counts), math.exp),
                "change": self._shown(bootstrap.intervals(pairs, counts), math.expm1),
            }
            rows.append(row)
        return rows

    def _shown(
        self, found: dict[str, Interval | None], of_nats: Callable[[float], float]
    ) -> dict[str, list[float] | None]:
        """Intervals as lists, those of nats converted."""
        return {
            score: interval and [of_nats(x) if score in self.perplexities else x for x in interval]
            for score, interval in found.items()
        }

    def _require_same(self, first: Evaluation, other: Evaluation) -> None:
        names = f"{other.run} and {first.run}"
        if other.subject.vocabulary_sha256 != first.subject.vocabulary_sha256:
            raise DataError(
                f"{names}: their vocabularies differ, so they count other tokens; compare equal ones"
            )
        if other.subject.data["sha256"] != first.subject.data["sha256"]:
            raise DataError(
                f"{names}: evaluated on different data; run `{self.program} evaluate` on the same data"
            )
        for column, problem in self.same:
            if first.contexts[column] != other.contexts[column]:
                raise DataError(f"{names}: {problem}")
