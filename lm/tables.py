"""Tables of a config, of what it amounts to before training, and of a prepared corpus, of whatever family."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lm.config import C, Resolved, known_keys
from lm.console import table

if TYPE_CHECKING:
    from rich.table import Table


def config_table(name: str, resolved: Resolved[C]) -> "Table":
    """Every key with its value and where that was set."""
    rows = []
    for key in known_keys(type(resolved.config)):
        value: Any = resolved.config
        for part in key.split("."):
            value = getattr(value, part)
        rows.append({"key": key, "value": str(value), "from": resolved.provenance[key]})
    return table(f"Config {name}", rows)


def preparation_tables(report: Mapping[str, Any], columns: Sequence[str], words: str) -> list["Table | str"]:
    """A row of counts for each split; then ``words``, on the vocabulary, and what was left out."""
    rows = [
        {"split": split, **{column: counts[column] for column in columns}}
        for split, counts in report["splits"].items()
    ]
    left_out = "; ".join(f"{count:,} × {reason}" for reason, count in report["dropped"].items())
    return [table(f"Read as {report['format']}", rows), f"{words}; left out: {left_out or 'nothing'}"]


def description_tables(description: Mapping[str, Any]) -> list["Table | str"]:
    """Parameters by part, memory, sizes where they are told, and the vocabulary that they are for."""
    words = f"{description['vocabulary']:,}"
    if description["vocabulary_assumed"]:
        words += ", the most that data.vocab_size and the corpus allow"
    parameters = {**description["parameters_by_part"], "total": description["parameters"]}
    sizes = [
        f"{name} {', '.join(map(str, size if isinstance(size, list) else [size]))}"
        for name, size in description.get("sizes", {}).items()
    ]
    memory = {name: math.ceil(size / 1e6) for name, size in description["memory"].items()}
    return [
        table("Parameters", [{"part": part, "parameters": count} for part, count in parameters.items()]),
        table("Estimated memory", [{"part": part, "MB": count} for part, count in memory.items()]),
        *([f"sizes: {'; '.join(sizes)}"] if sizes else []),
        f"for a vocabulary of {words}",
    ]
