"""Tables of the pages from what ``lm bottleneck`` measured, as its command prints them."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lm.console.tables import Table
from lm.disk.storage import read_json
from lm.numbers import shown
from lm.studies.bottleneck_figure import Name, bottleneck_tables, series


def study_tables(folder: Path) -> dict[str, str]:
    """Tables in Markdown by name; StorageError where a file cannot be read."""
    content: Any = read_json(folder / "bottleneck.json")
    sweeps, *longer = [entry["numbers"] for entry in content["entries"]]
    by_size, _, by_components, *_ = [one for one in bottleneck_tables(sweeps) if isinstance(one, Table)]
    return {
        "bottleneck, sizes": markdown(by_size),
        "bottleneck, components": markdown(by_components),
        "bottleneck, updates": markdown(over_updates([sweeps, *longer])),
    }


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


def markdown(table: Table) -> str:
    """A table of a command in Markdown; numbers between 0 and 1000 have three digits after the point."""
    names = list(table.rows[0])
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in table.rows:
        cells = [f"{cell:.3f}" if isinstance(cell, float) else shown("", cell) for cell in row.values()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def listed(values: Iterable[object]) -> str:
    """Values between commas."""
    return ", ".join(map(str, values))
