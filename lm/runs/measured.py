"""Results of analyses of runs, with the checkpoint, device and text of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from lm.results import Merged
from lm.runs.opened import Opened

T = TypeVar("T")


@dataclass(frozen=True)
class MeasuredText:
    """Name, source and hash of the text of a measurement."""

    name: str
    source: str
    sha256: str


class NamedText(Protocol):
    """A text as a measurement names it."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def sha256(self) -> str: ...


@dataclass(frozen=True)
class Measured(Generic[T]):
    """A finding in a run, and the checkpoint, device and text, if any, of the measurement."""

    checkpoint: str
    seed: int
    device: str
    found: Merged[T]
    data: MeasuredText | None = None


def measurement(opened: Opened[Any], text: NamedText | None, found: T) -> Measured[T]:
    """A finding in an opened model, on a text or without one."""
    data = MeasuredText(text.name, text.source, text.sha256) if text else None
    trained = opened.trained
    return Measured(opened.checkpoint, trained.config.train.seed, str(trained.device), found, data)


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
