"""Dialog models' part of the report: replies side by side, and remarks on them."""

from collections.abc import Sequence

from dialog.compare import COMPARED_SCORES, compare, comparison_tables
from dialog.config import DialogConfig
from lm.console.terminal import sanitize
from lm.numbers import number
from lm.report.charts import colour_of
from lm.report.page_parts import Names, PagePart, Paragraph, Reply, ReportFamily, SampleCard, common_samples
from lm.runs.evaluations import Evaluation

_OLDER = "No samples: a version that kept none made the evaluation; run `dialog evaluate` again."


def _remarks(evaluations: Sequence[Evaluation], names: Names) -> list[str]:
    """A sentence on BLEU and variety, and the warnings of the evaluations."""
    scores = []
    for evaluation in evaluations:
        result = evaluation.result
        bleu = "/".join(number("bleu", result["bleu"]["2"][side]) for side in ("precision", "recall"))
        scores.append(f"{names[evaluation.run]} {bleu} and {number('distinct', result['inter_distinct_2'])}")
    warnings = [
        f"{names[evaluation.run]}: {sanitize(str(warning))}."
        for evaluation in evaluations
        for warning in evaluation.result.get("warnings", ())
    ]
    return [f"Replies, BLEU-2 precision/recall and distinct-2: {'; '.join(scores)}.", *warnings]


def _samples(evaluations: Sequence[Evaluation], names: Names) -> list[PagePart]:
    """Contexts of the first run with the true response and every run's reply."""
    common = common_samples(evaluations)
    if not common:
        return [Paragraph(_OLDER)]
    found: list[PagePart] = [
        Paragraph("Nats are of the true response: fewer are better. Contexts are evenly spaced.")
    ]
    first = evaluations[0].contexts
    for index, samples in common:
        truth = samples[0]
        replies = [Reply("true response", None, _plain(truth["true"]), f"{first['tokens'][index]} tokens")]
        for place, (evaluation, sample) in enumerate(zip(evaluations, samples, strict=True)):
            nats = f"true response: {evaluation.contexts['nll'][index]:.1f} nats"
            reply = _plain(sample["reply"]) or "(empty)"
            replies.append(Reply(names[evaluation.run], colour_of(place), reply, nats))
        heading = f"Dialog {first['dialog'][index] + 1}, turn {first['turn'][index] + 1}"
        found.append(SampleCard(heading, [_plain(line) for line in truth["context"]], replies))
    return found


def _plain(text: str) -> str:
    return " ".join(sanitize(text).split())


FAMILY = ReportFamily(
    program="dialog",
    schema=DialogConfig,
    units="conversations",
    compare=compare,
    tables=comparison_tables,
    scores=lambda comparison: COMPARED_SCORES,
    samples=_samples,
    remarks=_remarks,
)
