"""Terminal tables of evaluations and prepared corpora."""

import math
from collections.abc import Mapping
from typing import Any

from dialog.metrics.scores import SAID
from dialog.utterance import Dialog
from lm.console.shared_tables import preparation_tables
from lm.console.tables import Table
from lm.console.terminal import sanitize
from lm.measures import guessing_note

Result = Mapping[str, Any]
_ORDERS = ("1", "2", "3", "4")
_MEASURES = (
    *("perplexity", "nll", "perplexity_batch_mean", "tokens", "contexts"),
    *("inter_distinct_1", "inter_distinct_2", "intra_distinct_1", "intra_distinct_2"),
    *("mean_length", "length_ratio", "looping_share", "most_common_share"),
)
_CUT = ("responses_cut", "tokens_cut")  # left out of the perplexity, beyond data.max_response


def prepared_tables(report: Result) -> list[Table | str]:
    """A row for each split, and the dropped lines."""
    columns = ("dialogs", "utterances", "contexts", "tokens", "oov_rate")
    tables = preparation_tables(report, columns, f"{report['vocabulary_size']:,} words in the vocabulary")
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


def evaluation_tables(result: Result) -> list[Table | str]:
    """Tables of the scores of an evaluated run."""
    tables = score_tables(f"{result['run']} on {result['data']['name']}", result)
    guess = [guessing_note(result["nll"], result["vocabulary"])] if result.get("near_guessing") else []
    return [
        *tables,
        *guess,
        *result["warnings"],
        f"BLEU compares {result['bleu_tokens']} tokens; kept as {result['name']}",
    ]


def score_tables(title: str, result: Result) -> list[Table | str]:
    """Tables of likelihood (with a model), variety, and BLEU with its yardsticks (if any)."""
    scores = {name: result[name] for name in _MEASURES if name in result}
    scores |= {name: result[name] for name in _CUT if result.get(name)}
    systems = {"model": result}
    references = result["references"]
    about = f"{references['mean']:.1f} references a context ({references['min']} to {references['max']})"
    if yardsticks := result.get("yardsticks"):
        systems["true response"] = yardsticks["true_response"]
        constants = yardsticks["constant_answers"].items()
        systems |= {f"{answer!r}": scores for answer, scores in constants if scores["said_share"] >= SAID}
        about += f"; true response {yardsticks['true_response']['treatment']}. {yardsticks['note']}"
    legacy = [
        {**row, "undefined share": scores["legacy_undefined_share"]}
        for row, scores in zip(_bleu_rows(systems, "bleu_legacy"), systems.values(), strict=True)
    ]
    return [
        Table(title, [scores | {"sacrebleu": result["sacrebleu"]["score"]}], upright=True),
        Table("Precision/recall, smoothing of today's NLTK", _bleu_rows(systems, "bleu")),
        Table("Precision/recall, smoothing of NLTK 3.4 and before, as published", legacy),
        about,
        "undefined share: of pairs with a common word for which NLTK 3.4 has no score; they count 0 in this"
        " table, as in Zhao et al.'s code",
    ]


def _bleu_rows(systems: Mapping[str, Result], variant: str) -> list[Result]:
    """A row for each system: the model and the yardsticks."""
    return [{"answers": name, **bleu_columns(scores[variant])} for name, scores in systems.items()]


def bleu_columns(scores: Result) -> dict[str, float]:
    """Precision and recall of BLEU-1 … BLEU-4, one column each."""
    return {
        f"BLEU-{n} {side[0].upper()}": scores[n][side] for n in _ORDERS for side in ("precision", "recall")
    }


def demo_table(results: Mapping[str, Result]) -> Table:
    """A row for each head: its distance to the true perplexity, and its responses."""
    rows = [
        {
            "head": head,
            "parameters": result["parameters"],
            "perplexity": result["perplexity"],
            "true perplexity": result["true_perplexity"],
            "excess nats a token": result["nll"] - math.log(result["true_perplexity"]),
            "BLEU-2 P": result["bleu"]["2"]["precision"],
            "BLEU-2 R": result["bleu"]["2"]["recall"],
            "distinct-2": result["inter_distinct_2"],
            "minutes": result["minutes"],
        }
        for head, result in results.items()
    ]
    return Table("Built-in corpus, test split", rows)
