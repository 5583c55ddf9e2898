"""What the ``lm`` command line shows of evaluations: tables for a terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lm.bootstrap import mark
from lm.console import table

if TYPE_CHECKING:
    from rich.table import Table

Result = Mapping[str, Any]
_MEASURES = ("perplexity", "nll", "bits_per_character", "tokens")
_REFINED = {
    "temperature_search": "best temperature",
    "mc_dropout": "MC dropout",
    "mc_temperature": "MC dropout, best temperature",
    "static": "static",
}


def evaluation_tables(result: Result) -> list["Table | str"]:
    """The likelihood of an evaluated run, its refinements, and losses by word frequency."""
    title = f"{result['run']} on {result['data']['name']}"
    rows = [{"measure": name, "value": result[name]} for name in _MEASURES if name in result]
    for key, label in _REFINED.items():
        if key in result:
            rows.append({"measure": f"perplexity, {label}", "value": result[key]["perplexity"]})
    buckets = [
        {
            "times in training": _span(bucket),
            **{name: bucket[name] for name in ("tokens", "share", "nll", "perplexity")},
        }
        for bucket in result.get("buckets", ())
    ]
    tables: list[Table | str] = [table(title, rows)]
    if buckets:
        tables.append(table("By frequency of the word", buckets))
    if search := result.get("temperature_search"):
        tables.append(
            f"logits × {search['multiplier']:g}, chosen on {search['searched_tokens']:,} tokens"
            f" of {search['searched_on']}"
        )
    if sampled := result.get("mc_dropout"):
        tempered = result.get("mc_temperature")
        logits = f", logits × {tempered['multiplier']:g} where at their best" if tempered else ""
        tables.append(f"MC dropout: {sampled['samples']} passes, rates × {sampled['rate']:g}{logits}")
    return [*tables, f"kept as {result['name']}"]


def dynamic_tables(result: Result) -> list["Table | str"]:
    """The search, if there is one, and the likelihood with the chosen setting beside the static one."""
    tables: list[Table | str] = []
    if "searched" in result:
        tables.append(table(f"{result['searched_by']} on {result['searched_on']}", result["searched"]))
    setting, statistics = result["setting_normalised"], result["statistics"]
    numbers = ", ".join(f"{name} {setting[name]:.3g}" for name in ("lr", "decay", "eps"))
    about = (
        f"{numbers} ({setting['scaling']});"
        f" statistics of {statistics['windows']:,} windows of {statistics['source']}"
    )
    likelihood, *rest = evaluation_tables(result)
    return [*tables, likelihood, about, *rest]


def scoring_tables(result: Result) -> list["Table | str"]:
    """What a scored file amounts to."""
    rows = [{"measure": name, "value": result[name]} for name in ("lines", "tokens", "nll", "perplexity")]
    return [table(f"{result['file']} by {result['run']}", rows), f"written to {result['output']}"]


def comparison_tables(comparison: Result) -> list["Table | str"]:
    """A row for each run, an asterisk where p < .05 against the first."""
    rows = [
        {
            **{name: row[name] for name in ("run", "head", "parameters", "checkpoint")},
            **{score: f"{row[score]:.2f}{mark(row['p'].get(score))}" for score in comparison["scores"]},
            "nats a token": round(row["nll"], 4),
            "p": row["p"].get("perplexity"),
        }
        for row in comparison["runs"]
    ]
    differ = [
        key for key in ("checkpoint", "method", "compat") if len({row[key] for row in comparison["runs"]}) > 1
    ]
    warning = [f"Warning: {', '.join(differ)} differ between the runs."] if differ else []
    return [table(f"Runs on {comparison['name']} (* p < .05 against the first)", rows), *warning]


def _span(bucket: Result) -> str:
    if not bucket["most"]:
        return "never" if bucket["most"] == 0 else f"more than {bucket['least'] - 1:,}"
    return f"{bucket['least']:,} to {bucket['most']:,}"
