"""Language models' part of the report: passages word by word."""

from collections.abc import Sequence

from lm.console.terminal import sanitize
from lm.language.compare import compare
from lm.language.config import LmConfig
from lm.language.tables import comparison_tables
from lm.numbers import number
from lm.report.charts import colour_of
from lm.report.page_parts import (
    Names,
    PagePart,
    Paragraph,
    Passage,
    ReportFamily,
    Word,
    common_samples,
)
from lm.runs.evaluations import Evaluation

_OLDER = "No passages: a version that kept none made the evaluation; run `lm evaluate` again."
_SHADES, _DEEPEST = 8, 8.0  # shades of a word, and nats of the deepest
_MARKED = 1.0  # nats of a gain or loss that a mark shows


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


FAMILY = ReportFamily(
    program="lm",
    schema=LmConfig,
    units="blocks of tokens",
    compare=compare,
    tables=comparison_tables,
    scores=lambda comparison: {score: score for score in comparison.scores or ()},
    samples=_passages,
)
