"""Tables of the pages from what ``lm bottleneck`` and ``lm reverse-copy`` measured, as these print them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lm.console.tables import Table
from lm.numbers import shown
from lm.studies.backward import UNTRAINED
from lm.studies.bottleneck_figure import Name, bottleneck_tables, series
from lm.studies.copying_figure import copying_tables
from pages.result_entries import entries_of
from pages.table_forms import markdown


def study_tables(folder: Path) -> dict[str, str]:
    """Tables in Markdown by name; StorageError where a file cannot be read."""
    sweeps, *longer = study_results(folder, "bottleneck")
    by_size, _, by_components, *_ = printed(sweeps)
    few_words, *_ = printed(*study_results(folder, "bottleneck_26"))
    [backward] = study_results(folder, "backward")
    [copies] = study_results(folder, "reverse_copy")
    nats, exact = (one for one in copying_tables(copies) if isinstance(one, Table))
    tables = {
        "bottleneck, sizes": by_size,
        "bottleneck, components": by_components,
        "bottleneck_26": few_words,
        "bottleneck, updates": over_updates([sweeps, *longer]),
        "backward": relay(backward),
        "spam": repetition(study_results(folder, "spam")),
        "reverse_copy": nats,
        "reverse_copy, exact": exact,
    }
    return {
        name: markdown(list(table.rows[0]), [list(map(_cell, row.values())) for row in table.rows])
        for name, table in tables.items()
    }


def study_results(folder: Path, name: str) -> list[Any]:
    """What the command measured, of each entry of a file of results."""
    return [entry["numbers"] for entry in entries_of(folder, name)]


def printed(result: Any) -> list[Table]:
    """The tables that ``lm bottleneck`` prints of a result."""
    return [one for one in bottleneck_tables(result) if isinstance(one, Table)]


def relay(result: Mapping[str, Any]) -> Table:
    """KL of every pair of trainer and reader, of each seed."""
    table = []
    for trainer in (UNTRAINED, *result["heads"]):
        rows = [row for row in result["rows"] if row["trainer"] == trainer]
        own = {
            "effective rank of its gradient": listed(f"{row['gradient_effective_rank']:.0f}" for row in rows),
            "of all its updates": listed(f"{row['moved_effective_rank']:.0f}" for row in rows),
            "itself": listed(f"{row['kl']:.3f}" for row in rows),
        }
        table.append(
            {"states trained by": trainer}
            | (dict.fromkeys(own) if trainer == UNTRAINED else own)
            | {
                f"read by {name}": listed(f"{row['readers'][name]['kl']:.3f}" for row in rows)
                for name in result["heads"]
            }
        )
    return Table("KL(truth ‖ model), nats", table)


def repetition(results: Sequence[Mapping[str, Any]]) -> Table:
    """Accuracy and loss of each seed, by number of updates, head and number of symbols."""
    table: dict[tuple[int, str], dict[str, object]] = {}
    for result in results:
        updates = max(result["settings"]["steps"])
        for row in result["rows"]:
            line = table.setdefault((updates, row["head"]), {"updates": updates, "head": row["head"]})
            for measure, key in (("accuracy", "accuracy"), ("nats", "nll")):
                column = f"{measure}, V = {row['vocab']:,}"
                line[column] = listed([*filter(None, [line.get(column)]), f"{row[key]:.2f}"])
    return Table("Texts of one repeated symbol", list(table.values()))


def over_updates(results: Sequence[Any]) -> Table:
    """KL of softmax and of MoS with factor 1, of each seed, by number of updates."""
    rows = []
    for result in sorted(results, key=lambda one: max(one["settings"]["steps"])):
        size, components = result["settings"]["sweep_size"], result["settings"]["components"][0]
        found = series(result)
        heads = (Name("softmax", 1.0, 1), Name("mos", 1.0, components))
        about = {"updates": found[heads[1]][size][0]["steps"], "seeds": listed(result["settings"]["seeds"])}
        columns = {str(head): listed(f"{row['kl']:.3f}" for row in found[head][size]) for head in heads}
        rows.append(about | columns)
    return Table("KL(truth ‖ model), nats", rows)


def _cell(value: Any) -> str:
    """A value of a command's table; numbers between 0 and 1000 have three digits after the point."""
    if value is None:
        return "none"
    return f"{value:.3f}" if isinstance(value, float) else shown("", value)


def listed(values: Iterable[object]) -> str:
    """Values between commas."""
    return ", ".join(map(str, values))
