"""Language models' part of the report: passages word by word, and measured ranks."""

from collections.abc import Sequence
from pathlib import Path

from lm.console.tables import Table
from lm.console.terminal import sanitize
from lm.errors import ConfigError, StorageError, visible
from lm.language.compare import compare
from lm.language.config import LmConfig
from lm.language.tables import comparison_tables
from lm.numbers import number
from lm.report.charts import Series, colour_of, line_chart
from lm.report.page_parts import (
    Names,
    PagePart,
    PageSection,
    PageTable,
    Paragraph,
    Passage,
    ReportFamily,
    Word,
    common_samples,
)
from lm.runs.checkpoint import CheckpointStore
from lm.runs.evaluations import Evaluation
from lm.spectra.spectrum import RankResult

_OLDER = "No passages: a version that kept none made the evaluation; run `lm evaluate` again."
_OUTDATED = (
    "Left out are ranks whose weights have changed since, or that name no checkpoint: {}."
    " Run `lm analyze rank` again."
)
_DAMAGED = "Left out are damaged files of ranks: {}. Run `lm analyze rank` again."
_SHADES, _DEEPEST = 8, 8.0  # shades of a word, and nats of the deepest
_MARKED = 1.0  # nats of a gain or loss that a mark shows
_POINTS = 400  # of a line of singular values


def _passages(evaluations: Sequence[Evaluation], names: Names) -> list[PagePart]:
    common = common_samples(evaluations)
    if not common:
        return [Paragraph(_OLDER)]
    about = "The first line is shaded by nats: darker words were less expected."
    if len(evaluations) > 1:
        about += (
            f" Further lines are shaded by gain or loss against {names[evaluations[0].run]}:"
            f" ▲ gains at least {_MARKED:g} nat, ▼ loses as much."
        )
    found: list[PagePart] = [Paragraph(about)]
    for index, passages in common:
        first: list[float] = passages[0]["nll"]
        readings = []
        for place, (evaluation, passage) in enumerate(zip(evaluations, passages, strict=True)):
            nll: list[float] = passage["nll"]
            words = [
                _word(word, nats, base if place else None)
                for word, nats, base in zip(passage["words"], nll, first, strict=True)
            ]
            note = f"{number('nll', sum(nll) / max(1, len(nll)))} nats a token"
            readings.append((names[evaluation.run], colour_of(place), note, words))
        found.append(Passage(f"From token {index + 1:,}", readings))
    return found


def _word(text: str, nats: float, base: float | None) -> Word:
    """A word with its nats, or with its gain against ``base``."""
    shown = " ".join(sanitize(text).split()) or "␣"
    own = f"{abs(nats):.2f} nats"  # not -0.00
    if base is None:
        return Word(shown, _shade(nats / _DEEPEST), "tn", "", own)
    gain = base - nats
    mark = "▲" if gain >= _MARKED else "▼" if gain <= -_MARKED else ""
    note = f"{own}, {'gain' if gain >= 0 else 'loss'} {abs(gain):.2f} against the first"
    return Word(shown, _shade(abs(gain) * 2 / _DEEPEST), "tg" if gain > 0 else "tl", mark, note)


def _shade(share: float) -> int:
    return max(0, min(_SHADES, round(_SHADES * share)))


def _further(runs: Sequence[Path], names: Names) -> list[PageSection]:
    """Ranks and singular values that ``lm analyze rank`` kept in the runs, of their present weights."""
    rows, series = [], []
    left_out: dict[str, list[str]] = {_OUTDATED: [], _DAMAGED: []}
    for index, run in enumerate(runs):
        for path in sorted((run / "analysis").glob("rank-*.npz")):
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
    notes = [Paragraph(note.format(", ".join(found))) for note, found in left_out.items() if found]
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


FAMILY = ReportFamily(
    program="lm",
    schema=LmConfig,
    units="blocks of tokens",
    compare=compare,
    tables=comparison_tables,
    scores=lambda comparison: {score: score for score in comparison.scores or ()},
    samples=_passages,
    further=_further,
)
