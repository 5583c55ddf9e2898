"""Terminal tables of evaluations and prepared corpora."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dialog.metrics.scores import ALL_FIVE, SAID
from dialog.utterance import Dialog
from lm.console.shared_tables import evaluated, preparation_tables
from lm.console.tables import Table
from lm.console.terminal import sanitize
from lm.measures import guessing_note, unknown_note

if TYPE_CHECKING:
    from dialog.demo import DemoResult
    from dialog.metrics.bleu import BleuScore
    from dialog.metrics.distinct import Diversity
    from dialog.metrics.scores import ResponseScores, ResponsesReport
    from dialog.results import DialogEvaluation

_ORDERS = ("1", "2", "3", "4")
_LIKELIHOOD = ("perplexity", "nll", "perplexity_batch_mean", "tokens", "contexts")
_CUT = ("responses_cut", "tokens_cut")  # left out of the perplexity, beyond data.max_response
_VARIED = ("model", "true response")  # systems whose variety is shown


def prepared_tables(report: Mapping[str, Any]) -> list[Table | str]:
    """A row for each split, and the dropped lines. Tokens and vocabulary if the report has them."""
    columns = ["dialogs", "utterances", "contexts"]
    words = ""
    if "vocabulary_size" in report:
        columns += ["tokens", "oov_rate"]
        words = f"{report['vocabulary_size']:,} words in the vocabulary"
    tables = preparation_tables(report, columns, words)
    return [*tables, *report.get("notes", ())]


def dialog_lines(dialog: Dialog, most: int = 0) -> list[str]:
    """A dialog after parsing, one utterance per line, sanitised; at most ``most`` utterances, 0 = all."""
    said = dialog.utterances[: most or None]
    lines = [f"{dialog.id}{' · ' if dialog.topic else ''}{dialog.topic}"]
    for utterance in said:
        act = f" [{utterance.act}]" if utterance.act else ""
        lines.append(f"  {utterance.speaker}: {' '.join(utterance.text.split())}{act}")
    if more := len(dialog.utterances) - len(said):
        lines.append(f"  … {more:,} more")
    return [sanitize(line) for line in lines]


def evaluation_tables(result: "DialogEvaluation") -> list[Table | str]:
    """Tables of the scores of an evaluated run."""
    found, subject = result.likelihood, result.subject
    shown = {name: getattr(found, name) for name in _LIKELIHOOD}
    shown["unknown_share"] = subject.data.unknown_share
    cut = {name: getattr(found, name) for name in _CUT if getattr(found, name)}
    yardsticks = result.report.yardsticks
    systems = shown_systems(result.report)
    note = f"; true response {yardsticks.true_response.treatment}. {yardsticks.note}"
    if repr(ALL_FIVE) in systems:
        note += f" The row {ALL_FIVE!r} has the five constant answers as one list."
    if result.decode.nbest > 1:
        note += (
            f" distinct-1 and distinct-2 count {result.decode.nbest} responses of the model to a context, and"
            " one of people; compare them within one response."
        )
    return [
        *_tables(evaluated(subject, result.ensemble_with), systems, shown, cut, note),
        *([guessing_note(found.nll, found.vocabulary)] if found.near_guessing else []),
        *unknown_note(subject.data.unknown_share, subject.data.own_unknown_share),
        *result.warnings,
        f"BLEU compares {result.bleu_tokens} tokens; kept as {result.name}",
    ]


def shown_systems(report: "ResponsesReport") -> dict[str, "ResponseScores"]:
    """Scores of the model, of people, and of the constant answers that the corpus has."""
    constants = report.yardsticks.constant_answers.items()
    return {
        "model": report.scores,
        "true response": report.yardsticks.true_response.scores,
        **{f"{name!r}": answer.scores for name, answer in constants if answer.said_share >= SAID},
    }


def score_tables(title: str, scores: "ResponseScores") -> list[Table | str]:
    """Tables of the variety and BLEU of responses without a model."""
    return _tables(title, {"model": scores}, {}, {}, "")


def _tables(
    title: str,
    systems: Mapping[str, "ResponseScores"],
    likelihood: Mapping[str, float],
    cut: Mapping[str, int],
    note: str,
) -> list[Table | str]:
    """Tables of the model's likelihood, and of the variety and BLEU of all systems, with a note."""
    scores = systems["model"]
    measures = {
        **likelihood,
        "length_ratio": scores.length_ratio,
        **cut,
        "sacrebleu": scores.sacrebleu.score,
    }
    spread = scores.references
    varied = [variety_row(name, one.diversity) for name, one in systems.items() if name in _VARIED]
    return [
        Table(title, [measures], upright=True),
        Table("Variety: shares of distinct n-grams, length, and repetition", varied),
        Table(
            "Precision/recall, smoothing of today's NLTK",
            [{"answers": name, **bleu_columns(one.bleu["bleu"])} for name, one in systems.items()],
        ),
        Table(
            "Precision/recall, smoothing of NLTK 3.4 and before, as published",
            [
                {
                    "answers": name,
                    **bleu_columns(one.bleu["bleu_legacy"]),
                    "undefined share": one.legacy_undefined_share,
                }
                for name, one in systems.items()
            ],
        ),
        f"{spread.mean:.1f} references a context ({spread.min} to {spread.max}){note}",
        "undefined share: of pairs with a common word for which NLTK 3.4 has no score; they count 0 in this"
        " table, as in Zhao et al.'s code",
    ]


def variety_row(name: str, found: "Diversity") -> dict[str, Any]:
    """Measures of the variety of a system's responses, as a row."""
    return {
        "answers": name,
        "distinct-1": found.inter_distinct_1,
        "distinct-2": found.inter_distinct_2,
        "distinct-1 in one": found.intra_distinct_1,
        "distinct-2 in one": found.intra_distinct_2,
        "length": found.mean_length,
        "looping share": found.looping_share,
        "most common": found.most_common_share,
    }


def bleu_columns(scores: Mapping[str, "BleuScore"]) -> dict[str, float]:
    """Precision and recall of BLEU-1 … BLEU-4, one column each."""
    return {
        f"BLEU-{n} {side}": value
        for n in _ORDERS
        for side, value in (("P", scores[n].precision), ("R", scores[n].recall))
    }


def demo_table(results: Mapping[str, "DemoResult"]) -> Table:
    """A row for each head: its distance to the true perplexity, and its responses."""
    rows = []
    for head, result in results.items():
        likelihood, scores = result.evaluation.likelihood, result.evaluation.report.scores
        rows.append(
            {
                "head": head,
                "parameters": result.evaluation.subject.parameters,
                "perplexity": likelihood.perplexity,
                "true perplexity": result.true_perplexity,
                "excess nats a token": likelihood.nll - math.log(result.true_perplexity),
                "BLEU-2 P": scores.bleu["bleu"]["2"].precision,
                "BLEU-2 R": scores.bleu["bleu"]["2"].recall,
                "distinct-2": scores.diversity.inter_distinct_2,
                "minutes": result.minutes,
            }
        )
    return Table("Built-in corpus, test split", rows)
