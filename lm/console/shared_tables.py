"""Tables of configs, their sizes, prepared corpora and p-values, for both families."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lm.config.load import C, Resolved
from lm.config.section import known_keys
from lm.console.tables import Table, without_common_folder
from lm.errors import visible

if TYPE_CHECKING:
    from lm.runs.compare import ComparedRuns
    from lm.runs.evaluations import Member, Subject


def config_table(name: str, resolved: Resolved[C]) -> Table:
    """A table of every key with its value and the origin of the value."""
    rows = []
    for key in known_keys(type(resolved.config)):
        value: Any = resolved.config
        for part in key.split("."):
            value = getattr(value, part)
        rows.append({"key": key, "value": str(value), "from": resolved.provenance[key]})
    return Table(f"Config {name}", rows)


def evaluated(subject: "Subject", others: "Sequence[Member] | None" = None) -> str:
    """The title of an evaluation: its models, the text, and the checkpoint unless it is the best."""
    models = " + ".join([subject.run, *(one.run for one in others or ())])
    at = "" if subject.checkpoint == "best" else f", {subject.checkpoint}"
    return f"{models} on {subject.data.name}{at}"


def preparation_tables(report: Mapping[str, Any], columns: Sequence[str], words: str) -> list[Table | str]:
    """A row of counts for each split, the text ``words`` on the vocabulary, and the dropped lines."""
    rows = [
        {"split": split, **{column: counts[column] for column in columns}}
        for split, counts in report["splits"].items()
    ]
    left_out = "; ".join(f"{count:,} × {reason}" for reason, count in report["dropped"].items())
    said = "; ".join(filter(None, [words, f"left out: {left_out or 'nothing'}"]))
    return [Table(f"Read as {report['format']}", rows), said]


def description_tables(description: Mapping[str, Any]) -> list[Table | str]:
    """Tables of parameters by part, memory and sizes, and the vocabulary that they assume."""
    words = f"{description['vocabulary']:,}"
    if description["vocabulary_assumed"]:
        words += ", the largest possible: a corpus with fewer words gives a smaller model"
    parameters = {**description["parameters_by_part"], "total": description["parameters"]}
    sizes = [
        f"{name} {', '.join(map(str, size if isinstance(size, list) else [size]))}"
        for name, size in description["sizes"].items()
    ]
    memory = {name: size / 1e6 for name, size in description["memory"].items()}
    return [
        Table("Parameters", [{"part": part, "parameters": count} for part, count in parameters.items()]),
        Table("Estimated memory", [{"part": part, "MB": count} for part, count in memory.items()]),
        f"sizes: {'; '.join(sizes)}",
        f"for a vocabulary of {words}",
    ]


def p_tables(comparison: "ComparedRuns", scores: Mapping[str, str]) -> list[Table | str]:
    """Tables of p-values of every run except the first, by the names of ``scores``. None for a single run."""
    bootstrap, runs = comparison.bootstrap, comparison.runs
    _, (first, *others) = without_common_folder([row.run for row in runs])
    rows = [
        {f"p against {first}": other, **{name: row.p.get(key) for name, key in scores.items()}}
        for other, row in zip(others, runs[1:], strict=True)
    ]
    from lm.bootstrap import FEW_UNITS, FEWEST_UNITS  # loads numpy, which `describe` avoids

    units = f"{bootstrap.units:,} unit{'s' if bootstrap.units > 1 else ''} ({bootstrap.unit})"
    if not rows:
        return []
    if bootstrap.units < FEWEST_UNITS:
        return [
            f"no p-values: a paired bootstrap needs at least {FEWEST_UNITS} units, but the text has {units}"
        ]
    remark = f"warning: p-values of only {units} say little; use a text of at least {FEW_UNITS} units"
    table = Table(f"Paired bootstrap over {units}", rows, measure="p")
    return [table, remark] if bootstrap.units < FEW_UNITS else [table]


def pool_tables(comparison: "ComparedRuns", scores: Mapping[str, str]) -> list[Table | str]:
    """Tables of scores over seeds, and of p-values of the pools except the first; [] without pools."""
    if not (pools := comparison.pools):
        return []
    names = [pool_name(pool.runs[0], len(pool.runs)) for pool in pools]
    rows = [
        {"run": name, "seeds": ", ".join(map(str, pool.seeds)), "value": value}
        | {label: getattr(pool.scores[key], value) for label, key in scores.items()}
        for name, pool in zip(names, pools, strict=True)
        for value in ("mean", "lowest", "highest")[: 3 if len(pool.runs) > 1 else 1]
    ]
    _, short = without_common_folder(names)
    tested = [
        {f"p against {short[0]}": name, **{label: pool.p[key] for label, key in scores.items()}}
        for name, pool in zip(short[1:], pools[1:], strict=True)
    ]
    tests = any(p is not None for pool in pools for p in pool.p.values())
    return [
        Table("Over seeds", rows),
        *([Table("Welch's t-test over seeds and texts", tested, measure="p")] if tests else []),
        "Runs that differ only in train.seed, head.products and keys without effect on the training count as"
        " one. Means of perplexities are geometric. A test needs two seeds on either side.",
    ]


def pool_name(first: str, runs: int) -> str:
    """Name of the runs of a pool, by that of the first."""
    return f"{first} and {runs - 1} more" if runs > 1 else first


def comparison_warnings(comparison: "ComparedRuns") -> list[str]:
    """Warnings about compared runs that are near guessing or whose training has not ended; [] for none."""
    guessing = [visible(row.run) for row in comparison.runs if row.near_guessing]
    unfinished = [f"{visible(row.run)} ({row.unfinished})" for row in comparison.runs if row.unfinished]
    noise = ", so that differences between them are noise" if len(guessing) > 1 else ""
    warnings = {
        f"near guessing{noise}": guessing,
        "trained without the planned end, so that scores are of unfinished models": unfinished,
    }
    return [f"warning: {text}: {', '.join(runs)}." for text, runs in warnings.items() if runs]
