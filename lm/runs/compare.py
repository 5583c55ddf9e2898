"""Evaluations of several runs side by side, with paired bootstrap p-values against the first run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lm import bootstrap
from lm.bootstrap import Floats
from lm.errors import ConfigError, DataError
from lm.runs.evaluations import Evaluation, Result, common_name, guesses, load_evaluation

Keys = tuple[tuple[str, ...], ...]
Pairs = dict[str, tuple[Floats, Floats]]


@dataclass(frozen=True)
class Comparison:
    """Comparison of the evaluations of one program.

    ``kept`` are the fields of a result that a comparison shows, and ``needed`` are further required fields.
    ``columns`` are the sums by unit. ``same`` are columns that must be equal, each with its error message.
    """

    program: str
    options: str
    kept: tuple[str, ...]
    needed: Keys
    columns: Keys
    same: tuple[tuple[str, str], ...]

    def open(self, runs: Sequence[Path], name: str | None) -> tuple[str, list[Evaluation]]:
        """Name of the evaluation, and the evaluation of each run, all of the same text.

        ConfigError for no run or an ambiguous name, DataError for different texts or a missing evaluation.
        """
        if not runs:
            raise ConfigError("no run to compare; name at least one run folder")
        name = name or common_name(runs, self.program, self.options)
        needed = (
            *(("result", key) for key in self.kept),
            *(("result", "data", "sha256"), ("result", "vocabulary_sha256")),
            *(("result", *keys) for keys in self.needed),
        )
        found = [load_evaluation(run, name, needed, self.columns, self.program) for run in runs]
        for other in found[1:]:
            self._require_same(found[0], other)
        return name, found

    def rows(
        self, evaluations: Sequence[Evaluation], pairs: Callable[[Evaluation], Pairs], counts: Floats
    ) -> list[Result]:
        """Kept fields of every run and its p-values by score, which the first run lacks.

        ``pairs`` returns differences from the first run and weights by unit; ``counts`` (R, U) are resamples.
        P-values are None if both runs are near guessing.
        """
        first, rows = evaluations[0], list[Result]()
        for evaluation in evaluations:
            p = {} if evaluation is first else bootstrap.p_values(pairs(evaluation), counts)
            near = guesses(evaluation)
            row = {"run": evaluation.run} | {key: evaluation.result[key] for key in self.kept}
            rows.append(
                row | {"near_guessing": near, "p": dict.fromkeys(p) if near and guesses(first) else p}
            )
        return rows

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
