"""Section of the report on ranks that ``analyze rank`` has measured."""

from collections.abc import Sequence
from pathlib import Path

from lm.console.tables import Table
from lm.errors import ConfigError, StorageError, visible
from lm.report.charts import Series, colour_of, line_chart
from lm.report.page_parts import Names, PagePart, PageSection, PageTable, Paragraph
from lm.runs.checkpoint import CheckpointStore
from lm.spectra.spectrum import KEPT, RankResult

_OUTDATED = (
    "Left out are ranks whose weights have changed since, or that name no checkpoint: {}."
    " Run `{} analyze rank` again."
)
_DAMAGED = "Left out are damaged files of ranks: {}. Run `{} analyze rank` again."
_POINTS = 400  # of a line of singular values


def rank_sections(runs: Sequence[Path], names: Names, program: str) -> list[PageSection]:
    """Ranks and singular values that ``analyze rank`` kept in the runs, of their present weights."""
    rows, series = [], []
    left_out: dict[str, list[str]] = {_OUTDATED: [], _DAMAGED: []}
    for index, run in enumerate(runs):
        for path in sorted((run / KEPT).glob("rank-*.npz")):
            name, text = names[str(run)], path.stem.removeprefix("rank-")
            try:
                spectrum = RankResult.load(path)
            except StorageError:
                left_out[_DAMAGED].append(f"{name} ({visible(text)})")
                continue
            if not _is_current(run, spectrum):
                left_out[_OUTDATED].append(f"{name} ({visible(text)})")
                continue
            rows.append(
                {
                    "run": name,
                    "text": text,
                    "rank": spectrum.rank,
                    "of": min(spectrum.shape),
                    "rank, ε of float32": spectrum.ranks["roundoff_float32"],
                    "tokens": spectrum.shape[0],
                    "words": spectrum.shape[1],
                }
            )
            label = f"{name}, {visible(text)}: rank {spectrum.rank:,}"
            series.append(Series(label, _falling(spectrum), colour_of(index)))
    chart = line_chart(
        "Singular values of the log-probability matrix",
        "Each is divided by the largest. A longer line before the fall is a higher rank.",
        ("index, largest first", "share of the largest"),
        series,
    )
    table = PageTable.of(Table("Numerical rank", rows)) if rows else None
    notes = [Paragraph(note.format(", ".join(found), program)) for note, found in left_out.items() if found]
    parts: list[PagePart] = [part for part in (table, chart, *notes) if part]
    return [PageSection("rank", "Rank", parts)] if parts else []


def _is_current(run: Path, spectrum: RankResult) -> bool:
    """True if the weights of a spectrum have not changed since, as far as the run still has them."""
    try:
        now = CheckpointStore.of(run).fingerprint(spectrum.checkpoint or "last")
    except ConfigError:  # another text than the name of a checkpoint
        return False
    return now in (None, spectrum.fingerprint)


def _falling(spectrum: RankResult) -> list[tuple[float, float]]:
    """Positive singular values by index, divided by the largest, at most ``_POINTS`` of them."""
    values = spectrum.singular_values
    largest = float(values[0]) or 1.0
    step = max(1, -(-len(values) // _POINTS))
    return [
        (index + 1, float(values[index]) / largest)
        for index in range(0, len(values), step)
        if values[index] > 0
    ]
