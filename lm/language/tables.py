"""Terminal tables of evaluations for the ``lm`` command line."""

from collections.abc import Iterator

from lm.console.shared_tables import comparison_warnings, evaluated, p_tables, pool_tables
from lm.console.tables import Table
from lm.errors import visible
from lm.language.dynamic import DynamicEvaluation
from lm.language.results import (
    DropoutPasses,
    FrequencyBucket,
    Likelihood,
    LmEvaluation,
    RefinementChoice,
    StaticEvaluation,
    TemperatureChoice,
)
from lm.language.scoring import ScoredFile
from lm.measures import guessing_note, unknown_note
from lm.runs.compare import ComparedRuns

MEASURE_LABELS = {
    "temperature_search": "best temperature",
    "mc_dropout": "MC dropout",
    "mc_temperature": "MC dropout, best temperature",
    "cache": "continuous cache",
    "static": "static",
}


def evaluation_tables(result: StaticEvaluation) -> list[Table | str]:
    """Tables of a run's likelihood, its refinements, and losses by word frequency."""
    buckets = [
        {
            "times in training": _span(bucket),
            "tokens": bucket.tokens,
            "share": bucket.share,
            "nll": bucket.nll,
            "perplexity": bucket.perplexity,
        }
        for bucket in result.buckets
    ]
    guess = [guessing_note(result.likelihood.nll, result.vocabulary)] if result.near_guessing else []
    return [
        _likelihood(result),
        Table("By frequency of the word", buckets),
        *guess,
        *_notes(result),
    ]


def dynamic_tables(result: DynamicEvaluation) -> list[Table | str]:
    """Tables of the search, if any, and of the dynamic and static likelihood."""
    tables: list[Table | str] = []
    if search := result.search:
        rows = [vars(tried) for tried in search.searched]
        tables.append(Table(f"{search.searched_by} on {search.searched_on}", rows))
    setting, statistics = result.setting_normalised, result.statistics
    numbers = f"lr {setting.lr:.3g}, decay {setting.decay:.3g}, eps {setting.eps:.3g}"
    about = (
        f"{numbers} ({setting.scaling}); statistics of {statistics.windows:,} windows of {statistics.source}"
    )
    worse = _per_scored(result.likelihood) > _per_scored(result.static)
    advice = [f"Worse than without adapting: try a --lr of {result.setting.lr / 5:.1g}, or --trials 20."]
    likelihood = _likelihood(result, result.static.perplexity)
    return [*tables, likelihood, about, *_notes(result), *(advice if worse else [])]


def _per_scored(found: Likelihood) -> float:
    """Nats of a scored token, also where the sum was divided by another number."""
    return found.nll * found.tokens / found.scored


def _likelihood(result: LmEvaluation, static: float | None = None) -> Table:
    """Likelihood of a run and of its refinements; of a dynamic evaluation also the ``static`` perplexity."""
    found = result.likelihood
    name = "perplexity" if static is None else "perplexity, dynamic"
    scores = {name: found.perplexity, "nll": found.nll}
    if found.bits_per_character is not None:
        scores["bits_per_character"] = found.bits_per_character
    scores["tokens"] = found.tokens
    scores["unknown_share"] = result.subject.data.unknown_share
    for key, one in result.refined.items():
        scores[f"perplexity, {MEASURE_LABELS[key]}"] = one.likelihood.perplexity
    if static is not None:
        scores[f"perplexity, {MEASURE_LABELS['static']}"] = static
    others = result.ensemble_with if isinstance(result, StaticEvaluation) else None
    return Table(evaluated(result.subject, others), [scores], upright=True)


def _notes(result: LmEvaluation) -> list[str]:
    """Parameters of the refinements, a warning about unknown words, and the name of the evaluation."""
    found = {key: one.choice for key, one in result.refined.items()}
    if "mc_temperature" in found:
        del found["mc_dropout"]
    data = result.subject.data
    many = unknown_note(data.unknown_share, data.own_unknown_share)
    return [*map(_note, found.values()), *many, f"kept as {result.name}"]


def _note(choice: RefinementChoice) -> str:
    if isinstance(choice, TemperatureChoice):
        chosen = f"chosen on {choice.searched_tokens:,} tokens of {choice.searched_on}"
        return f"logits × {choice.multiplier:g}, {chosen}"
    if isinstance(choice, DropoutPasses):
        tempered = choice.temperature
        logits = f", logits × {tempered.multiplier:g} at their best temperature" if tempered else ""
        return f"MC dropout: {choice.samples} passes, rates × {choice.rate:g}{logits}"
    best = choice.choice
    numbers = f"cache of {choice.size:,} words, θ {best.theta:g}, λ {best.share:g}"
    if best.searched is None:
        return numbers
    return f"{numbers}, chosen on {best.searched_tokens:,} tokens of {best.searched_on}"


def scoring_tables(result: ScoredFile) -> list[Table | str]:
    """Tables of the totals of a scored file."""
    scores = {
        "lines": result.lines,
        "tokens": result.tokens,
        "nll": result.nll,
        "perplexity": result.perplexity,
    }
    title = f"{result.file} by {result.run}"
    return [Table(title, [scores], upright=True), f"written to {result.output}"]


def comparison_tables(comparison: ComparedRuns) -> list[Table | str]:
    """A table of runs, and one of p-values with a row for each run except the first."""
    runs, scores = comparison.runs, comparison.scores or ()
    rows = [
        {
            "run": row.run,
            **{name: row.facts[name] for name in ("head", "parameters", "checkpoint", *scores)},
            "nats a token": row.facts["nll"],
        }
        for row in runs
    ]
    values = {
        key: dict.fromkeys(str(row.facts[key]) for row in runs) for key in ("checkpoint", "method", "compat")
    }
    differ = [f"{key} ({', '.join(found)})" for key, found in values.items() if len(found) > 1]
    warning = [f"warning: the runs differ in {' and '.join(differ)}."] if differ else []
    return [
        Table(f"Runs on {comparison.name}", rows),
        *p_tables(comparison, {score: score for score in scores}),
        *pool_tables(comparison, {score: score for score in scores}),
        *warning,
        *_not_compared(comparison),
        *comparison_warnings(comparison),
    ]


def _not_compared(comparison: ComparedRuns) -> Iterator[str]:
    """A warning for each refined perplexity that only some of the evaluations have."""
    for score, label in MEASURE_LABELS.items():
        found = [visible(row.run) for row in comparison.runs if score in row.facts]
        if found and score not in (comparison.scores or ()):
            yield f"warning: not compared: {label}, which only some of the runs have: {', '.join(found)}."


def _span(bucket: FrequencyBucket) -> str:
    if not bucket.most:
        return "never" if bucket.most == 0 else f"more than {bucket.least - 1:,}"
    return f"{bucket.least:,} to {bucket.most:,}"
