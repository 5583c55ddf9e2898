"""Parts of a report's page. The template draws each by its ``kind``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from lm.console.tables import Column, Table, turned
from lm.report.charts import IntervalChart, LineChart
from lm.runs.compare import ComparedRuns
from lm.runs.evaluations import Evaluation

Names = Mapping[str, str]  # shown name of every run


@dataclass(frozen=True)
class Paragraph:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class PageTable:
    """A table of finished cells, whose first column names the row; folded if ``folded``."""

    kind: ClassVar[str] = "grid"
    heading: str
    columns: Sequence[Column]
    folded: bool = False

    @classmethod
    def of(cls, table: Table, *, turn: bool = False) -> "PageTable":
        """The cells of a table for terminals; ``turn`` transposes it."""
        columns = table.columns()
        return cls(table.heading, turned(columns) if turn else columns)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Cells by row."""
        return list(zip(*(column.cells for column in self.columns), strict=True))


@dataclass(frozen=True)
class Code:
    """Commands or a file to copy; folded if ``folded``."""

    kind: ClassVar[str] = "code"
    heading: str
    text: str
    folded: bool = False


@dataclass(frozen=True)
class Reply:
    """An answer in a sample: who gave it, the text, and a note such as its score."""

    name: str
    colour: int | None
    text: str
    note: str


@dataclass(frozen=True)
class SampleCard:
    """A context with replies side by side."""

    kind: ClassVar[str] = "conversation"
    heading: str
    context: Sequence[str]
    replies: Sequence[Reply]


@dataclass(frozen=True)
class Word:
    """A word of a passage: its shade from 0 to 8, and its mark and note for readers without colours.

    ``tint`` is ``tn`` for nats, ``tg`` for a gain and ``tl`` for a loss against the first run.
    """

    text: str
    shade: int
    tint: str
    mark: str
    note: str


@dataclass(frozen=True)
class Passage:
    """A passage as each run reads it: words by name of a run."""

    kind: ClassVar[str] = "passage"
    heading: str
    readings: Sequence[tuple[str, int, str, Sequence[Word]]]  # name, colour, note, words


@dataclass(frozen=True)
class Component:
    """A component: its number, its share of the prior in percent, and a text on its words."""

    number: int
    share: str
    width: str
    text: str


@dataclass(frozen=True)
class Components:
    """Use of the components of a run."""

    kind: ClassVar[str] = "components"
    name: str
    colour: int
    about: str
    components: Sequence[Component]


PagePart = Paragraph | PageTable | Code | SampleCard | Passage | Components | LineChart | IntervalChart


@dataclass(frozen=True)
class PageSection:
    """A section of the page. ``id`` is its anchor."""

    id: str
    title: str
    parts: Sequence[PagePart]


def common_samples(evaluations: Sequence[Evaluation]) -> list[tuple[int, list[Mapping[str, Any]]]]:
    """Samples that all evaluations kept, by index, with that of every run."""
    by_index = [
        {sample["index"]: sample for sample in evaluation.details.get("samples", ())}
        for evaluation in evaluations
    ]
    common = set(by_index[0]).intersection(*by_index[1:])
    return [(index, [samples[index] for samples in by_index]) for index in sorted(common)]


def _nothing(_: Sequence[object], names: Names) -> list[Any]:
    return []


@dataclass(frozen=True)
class ReportFamily:
    """Differences between the reports of dialog models and of language models.

    ``scores`` returns the keys of the tested scores by label, the perplexity first. ``units`` names the units
    of the bootstrap. ``remarks`` are sentences of the verdict on other scores than perplexity.
    """

    program: str
    schema: type[BaseModel]
    units: str
    compare: Callable[[Sequence[Path], str | None, int], ComparedRuns]
    tables: Callable[[ComparedRuns], Sequence[Table | str]]
    scores: Callable[[ComparedRuns], Mapping[str, str]]
    samples: Callable[[Sequence[Evaluation], Names], list[PagePart]]
    remarks: Callable[[Sequence[Evaluation], Names], list[str]] = _nothing
