"""Terminal tables of evaluations for the ``lm`` command line."""

from collections.abc import Mapping
from typing import Any

from lm.console.shared_tables import p_tables
from lm.console.tables import Table
from lm.measures import guessing_note
from lm.runs.evaluations import guessing_warning

Result = Mapping[str, Any]
_MEASURES = ("perplexity", "nll", "bits_per_character", "tokens")
MEASURE_LABELS = {
    "temperature_search": "best temperature",
    "mc_dropout": "MC dropout",
    "mc_temperature": "MC dropout, best temperature",
    "cache": "continuous cache",
    "static": "static",
}


def evaluation_tables(result: Result) -> list[Table | str]:
    """Tables of a run's likelihood, its refinements, and losses by word frequency."""
    title = f"{result['run']} on {result['data']['name']}"
    scores = {name: result[name] for name in _MEASURES if name in result} | {
        f"perplexity, {label}": result[key]["perplexity"]
        for key, label in MEASURE_LABELS.items()
        if key in result
    }
    buckets = [
        {
            "times in training": _span(bucket),
            **{name: bucket[name] for name in ("tokens", "share", "nll", "perplexity")},
        }
        for bucket in result.get("buckets", ())
    ]
    tables: list[Table | str] = [Table(title, [scores], upright=True)]
    if buckets:
        tables.append(Table("By frequency of the word", buckets))
    if result.get("near_guessing"):
        tables.append(guessing_note(result["nll"], result["vocabulary"]))
    if search := result.get("temperature_search"):
        tables.append(
            f"logits × {search['multiplier']:g}, chosen on {search['searched_tokens']:,} tokens"
            f" of {search['searched_on']}"
        )
    if sampled := result.get("mc_dropout"):
        tempered = result.get("mc_temperature")
        logits = f", logits × {tempered['multiplier']:g} at their best temperature" if tempered else ""
        tables.append(f"MC dropout: {sampled['samples']} passes, rates × {sampled['rate']:g}{logits}")
    if cache := result.get("cache"):
        numbers = f"cache of {cache['size']:,} words, θ {cache['theta']:g}, λ {cache['share']:g}"
        if "searched" in cache:
            numbers += f", chosen on {cache['searched_tokens']:,} tokens of {cache['searched_on']}"
        tables.append(numbers)
    return [*tables, f"kept as {result['name']}"]


def dynamic_tables(result: Result) -> list[Table | str]:
    """Tables of the search, if any, and of the dynamic and static likelihood."""
    tables: list[Table | str] = []
    if "searched" in result:
        tables.append(Table(f"{result['searched_by']} on {result['searched_on']}", result["searched"]))
    setting, statistics = result["setting_normalised"], result["statistics"]
    numbers = ", ".join(f"{name} {setting[name]:.3g}" for name in ("lr", "decay", "eps"))
    about = (
        f"{numbers} ({setting['scaling']});"
        f" statistics of {statistics['windows']:,} windows of {statistics['source']}"
    )
    likelihood, *rest = evaluation_tables(result)
    return [*tables, likelihood, about, *rest]


def scoring_tables(result: Result) -> list[Table | str]:
    """Tables of the totals of a scored file."""
    scores = {name: result[name] for name in ("lines", "tokens", "nll", "perplexity")}
    title = f"{result['file']} by {result['run']}"
    return [Table(title, [scores], upright=True), f"written to {result['output']}"]


def comparison_tables(comparison: Result) -> list[Table | str]:
    """A table of runs, and one of p-values with a row for each run except the first."""
    runs = comparison["runs"]
    rows = [
        {
            **{name: row[name] for name in ("run", "head", "parameters", "checkpoint")},
            **{score: row[score] for score in comparison["scores"]},
            "nats a token": row["nll"],
        }
        for row in runs
    ]
    differ = [key for key in ("checkpoint", "method", "compat") if len({row[key] for row in runs}) > 1]
    warning = [f"Warning: {', '.join(differ)} differ between the runs."] if differ else []
    warning += guessing_warning(runs)
    scores = {score: score for score in comparison["scores"]}
    return [Table(f"Runs on {comparison['name']}", rows), *p_tables(comparison, scores), *warning]


def _span(bucket: Result) -> str:
    if not bucket["most"]:
        return "never" if bucket["most"] == 0 else f"more than {bucket['least'] - 1:,}"
    return f"{bucket['least']:,} to {bucket['most']:,}"
