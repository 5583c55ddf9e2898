"""Runs and texts that an analysis opens, and what its result says about them. Imports nothing heavy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Generic, Self, TypeVar

import typer

from lm.console.app import show, write_result
from lm.console.options import named
from lm.console.tables import Table
from lm.errors import StorageError
from lm.parallel.group import ALONE, Group
from lm.results import Merged

if TYPE_CHECKING:
    from lm.language.evaluate import Text
    from lm.language.trained import TrainedLm

T = TypeVar("T")

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        parser=named,
        help="Folder of figures; default: RUN/analysis for one run, ./analysis for several.",
    ),
]
OverTraining = Annotated[
    bool, typer.Option("--over-training", help="Analyse every stored checkpoint of the runs.")
]


def figures_folder(out: Path | None, runs: Sequence[Path]) -> Path:
    """Folder of the figures of runs: ``out``, or by default that of a single run."""
    if out is not None:
        return out
    return runs[0] / "analysis" if len(runs) == 1 else Path("analysis")


def load(run: Path, checkpoint: str) -> "TrainedLm":
    """Open a run folder at a checkpoint."""
    from lm.language.trained import TrainedLm
    from lm.runs.evaluations import loaded

    return loaded(run, checkpoint, TrainedLm.load)[0]


def opened_steps(
    runs: Sequence[Path],
    data: str | None,
    limit: int | None,
    checkpoint: str,
    every: bool = False,
    group: Group = ALONE,
) -> Iterator[tuple[str, str, "TrainedLm", "Text"]]:
    """Yield (name, checkpoint, model, text) of one checkpoint of each run, or of ``every`` stored one.

    WorkerError where they differ among the processes of a group.
    """
    for name, which, opened in loaded_steps(runs, checkpoint, every):
        trained = replace(opened, group=group)
        text = text_of(trained, data, limit)
        if group.size > 1:
            from lm.language.trained import weights_sha256

            group.require_equal({"checkpoint": weights_sha256(trained.model), "text": text.sha256})
        yield name, which, trained, text


def loaded_steps(
    runs: Sequence[Path], checkpoint: str, every: bool
) -> Iterator[tuple[str, str, "TrainedLm"]]:
    """Yield (name, checkpoint, model) of one checkpoint of each run, or of ``every`` stored one."""
    for run in runs:
        for which in steps_of(run) if every else [checkpoint]:
            yield f"{run} {which}" if every else str(run), which, load(run, which)


def steps_of(run: Path) -> list[str]:
    """Names of all intact checkpoints of a run, the oldest first. Raises StorageError if there is none."""
    from lm.runs.checkpoint import CheckpointStore

    store = CheckpointStore.of(run)
    if store.latest() is None:
        raise StorageError(f"{run}: no checkpoint yet; train the run first")
    return [f"step-{report.step}" for report in reversed(store.verify_all()) if not report.problem]


def text_of(trained: "TrainedLm", data: str | None, limit: int | None) -> "Text":
    """The text to analyse: the given one, or the test split of the run."""
    from lm.language.evaluate import load_text, own_test

    return load_text(trained, data or own_test(trained), limit)


@dataclass(frozen=True)
class MeasuredText:
    """Name, source and hash of the text of a measurement."""

    name: str
    source: str
    sha256: str


@dataclass(frozen=True)
class Measured(Generic[T]):
    """A finding in a run, and the checkpoint, device and text, if any, of the measurement."""

    checkpoint: str
    seed: int
    device: str
    found: Merged[T]
    data: MeasuredText | None = None

    @classmethod
    def of(cls, trained: "TrainedLm", text: "Text | None", checkpoint: str, found: T) -> Self:
        """A measurement of a loaded run."""
        data = MeasuredText(text.name, text.source, text.sha256) if text else None
        return cls(checkpoint, trained.config.train.seed, str(trained.device), found, data)


@dataclass(frozen=True)
class MeasuredRuns(Generic[T]):
    """Measurements of runs by name, their devices, and the figures that show them."""

    runs: Mapping[str, Measured[T]]
    device: str
    figures: Sequence[str] | None = None

    @classmethod
    def of(cls, runs: Mapping[str, Measured[T]], figures: Sequence[Path] = ()) -> Self:
        """The measurements of ``runs`` by name."""
        devices = ", ".join(sorted({measured.device for measured in runs.values()}))
        return cls(runs, devices, [*map(str, figures)] or None)

    def found(self) -> dict[str, T]:
        """The findings by run."""
        return {name: measured.found for name, measured in self.runs.items()}


def report_runs(
    json_file: Path | None,
    runs: Mapping[str, Measured[T]],
    tables: Callable[[Mapping[str, T]], Sequence[Table | str]],
    figures: Sequence[Path] = (),
    *notes: str,
) -> None:
    """Write the measurements of runs by name to ``json_file``, and print their tables and notes."""
    result = MeasuredRuns.of(runs, figures)
    write_result(json_file, result)
    show(*tables(result.found()), *notes)
