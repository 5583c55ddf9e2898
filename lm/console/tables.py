"""Tables that fit any terminal: unchanged, transposed, or split into several pieces.

No cell is ever truncated. Numbers are not broken. Text with spaces may wrap over several lines.
"""

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lm.errors import visible
from lm.numbers import shown

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

Row = Mapping[str, object]
_TEXT = 24  # minimum width of a wrapped column of text, in cells
_EDGE = 3  # cells of the border and the padding of a column
_RUNS = ("run", "model")  # first columns whose cells are folders


@dataclass(frozen=True)
class Table:
    """Rows with equal keys. The first column names the row.

    The name of a column, or ``measure`` for all columns, decides the number format (:mod:`lm.numbers`). A
    table of one ``upright`` row is a list of measures and their values.
    """

    title: str
    rows: Sequence[Row]
    upright: bool = False
    measure: str = ""

    @property
    def heading(self) -> str:
        """The title, and the common folder of the runs in the first column."""
        folder, _ = without_common_folder(self._runs())
        return visible(f"{self.title}, in {folder}/" if folder else self.title)

    def cells(self) -> list[dict[str, str]]:
        """The text of the cells by row."""
        rows = [
            {name: shown(self.measure or name, value) for name, value in row.items()} for row in self.rows
        ]
        if self.upright:
            return [{"measure": name, "value": text} for row in rows for name, text in row.items()]
        _, runs = without_common_folder(self._runs())
        return [row | {next(iter(row)): run} for row, run in zip(rows, runs, strict=True)] if runs else rows

    def _runs(self) -> list[str]:
        """The first column if it holds the folders of runs, else nothing."""
        first = next(iter(self.rows[0]), "") if self.rows else ""
        return [visible(row[first]) for row in self.rows] if first in _RUNS else []

    def columns(self) -> list["Column"]:
        """The columns for display."""
        rows, found = self.cells(), list[Column]()
        for name in rows[0] if rows else ():
            numeric = not self.upright and all(isinstance(row[name], int | float | None) for row in self.rows)
            right = numeric or (self.upright and name == "value")
            found.append(Column(visible(name), [row[name] for row in rows], right))
        return found

    def markdown(self) -> str:
        """The table in GitHub's Markdown, under its title."""
        columns = self.columns()
        lines = [
            [column.head for column in columns],
            ["---:" if column.right else "---" for column in columns],
            *zip(*(column.cells for column in columns), strict=True),
        ]
        text = "\n".join(
            f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
        )
        return f"**{self.heading}**\n\n{text}\n"

    def csv(self) -> str:
        """The table as CSV with unrounded values and a header."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        rows = [list(row.items()) for row in self.rows]
        if self.upright:
            rows = [[("measure", name), ("value", value)] for row in rows for name, value in row]
        writer.writerow([name for name, _ in rows[0]] if rows else [])
        writer.writerows(
            [visible(value) if isinstance(value, str) else value for _, value in row] for row in rows
        )
        return text.getvalue()

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> Iterator["RenderableType"]:
        pieces = fitted(self.columns(), options.max_width)
        for number, piece in enumerate(pieces):
            title = self.heading + (f" ({number + 1} of {len(pieces)})" if len(pieces) > 1 else "")
            yield _drawn(title, piece, options.max_width)


@dataclass(frozen=True)
class Column:
    """A column for display: its head and its cells."""

    head: str
    cells: Sequence[str]
    right: bool

    @property
    def most(self) -> int:
        """Width in terminal cells without wrapping."""
        from rich.cells import cell_len

        return max(map(cell_len, (self.head, *self.cells)))

    @property
    def least(self) -> int:
        """Minimum width in terminal cells. Heads and text wrap, numbers and names do not."""
        from rich.cells import cell_len

        words = max((cell_len(word) for text in (self.head, *self.cells) for word in text.split()), default=1)
        longest = max(map(cell_len, self.cells), default=1)
        return max(words, min(longest, _TEXT))


def without_common_folder(runs: Sequence[str]) -> tuple[str, list[str]]:
    """The common leading folders of several run names, and the names without these folders."""
    if len(set(runs)) < 2 or len({os.path.isabs(run) for run in runs}) > 1:
        return "", list(runs)
    folder = os.path.commonpath([os.path.dirname(run) for run in runs])
    return folder, [os.path.relpath(run, folder) if folder else run for run in runs]


def fitted(columns: Sequence[Column], width: int) -> list[Sequence[Column]]:
    """The columns in pieces of at most ``width`` cells, if possible.

    One piece if all columns fit. Else the transposed table, if that fits. Else several pieces, each with the
    first column.
    """
    if len(columns) < 2 or _needed(columns) <= width:
        return [columns]
    if _needed(side := turned(columns)) <= width:
        return [side]
    first, *rest = columns
    pieces: list[list[Column]] = [[first]]
    for column in rest:
        if len(pieces[-1]) > 1 and _needed([*pieces[-1], column]) > width:
            pieces.append([first])
        pieces[-1].append(column)
    return list(pieces)


def turned(columns: Sequence[Column]) -> list[Column]:
    """The transposed table. Heads become the first column."""
    first, *rest = columns
    lines = zip(*(column.cells for column in rest), strict=True)
    heads = Column(first.head, [column.head for column in rest], right=False)
    return [heads, *(Column(name, line, right=True) for name, line in zip(first.cells, lines, strict=True))]


def _needed(columns: Sequence[Column]) -> int:
    return sum(column.least + _EDGE for column in columns) + 1


def _drawn(title: str, columns: Sequence[Column], width: int) -> "RenderableType":
    """A rich table of these columns. Spare width goes to wrapped columns."""
    from rich.table import Table as Drawing
    from rich.text import Text

    drawing = Drawing(title=Text(title), title_justify="left")
    room = width - _needed(columns)
    for column in columns:
        more = max(0, min(room, column.most - column.least))
        room -= more
        drawing.add_column(
            Text(column.head),
            justify="right" if column.right else "left",
            width=column.least + more,
            overflow="fold",
        )
    for line in zip(*(column.cells for column in columns), strict=True):
        drawing.add_row(*map(Text, line))
    return drawing
