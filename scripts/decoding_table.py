"""A Markdown table of runs decoded in several ways, with the true responses as the yardstick.

dialog evaluate runs/mos --json beam.json
dialog evaluate runs/mos --set decode.beam=1 --json greedy.json
python scripts/decoding_table.py "beam search=beam.json" greedy=greedy.json

``--json FILE --machine TEXT`` also writes the numbers in the form of results/*.json, from which
scripts/docs.py draws the table of docs/decoding.md.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command_line import Options, run_script
from pages.page_tables import table
from pages.result_entries import NUMBERS, at, entry, hash_of_run, torch_of, write_entries
from pages.table_columns import DECODED, TABLES

from dialog.config import DialogConfig
from dialog.decoding.config import DecodeConfig
from lm.disk.jsonfile import read_json
from lm.errors import require
from lm.runs.inputs import config_of

Result = Mapping[str, Any]
NAME = "decoding"
KEYS = NUMBERS | {  # keys of a number in a result, by the name that scripts/pages/table_columns.py has
    "perplexity": NUMBERS["test_perplexity"],
    "inter_distinct_1": ("inter_distinct_1",),
}


def numbers(result: Result) -> dict[str, Any]:
    """Numbers of a system by column of the table; people have no perplexity."""
    return {name: at(result, KEYS[name]) for _, name, _ in DECODED}


def settings(result: Result, usual: DecodeConfig) -> list[str]:
    """Keys of decoding that differ from those of the run; a path is reduced to its last part."""
    own = usual.model_dump(mode="json")
    changed = {key: value for key, value in result["decode"].items() if value != own[key]}
    if changed.get("mmi_run"):
        changed["mmi_run"] = f"runs/{Path(changed['mmi_run']).name}"
    return [f"decode.{key}={json.dumps(value)}" for key, value in changed.items()]


def entry_of(label: str, result: Result, machine: str) -> dict[str, Any]:
    """A way of decoding in the form of results/*.json."""
    systems = [Path(one["run"]) for one in (result, *result.get("ensemble_with", ()))]
    changed = settings(result, config_of(systems[0], DialogConfig).config.decode)
    options, data = [f"--set {shlex.quote(text)}" for text in changed], result["data"]
    if data["references_file"]:
        options.insert(0, f"--references {Path(data['references_file']).name}")
    if f".first-{result['contexts']}" in data["name"]:
        options.append(f"--limit {result['contexts']}")
    if result["checkpoint"] != "best":
        options.append(f"--checkpoint {result['checkpoint']}")
    return entry(
        label,
        numbers(result),
        [result["seed"]],
        machine,
        config=f"runs/{systems[0].name}",
        config_hash=", ".join(map(hash_of_run, systems)),
        settings=changed,
        command=" ".join(["dialog evaluate", *(f"runs/{run.name}" for run in systems), *options]),
        torch_version=torch_of(systems[0]),
    )


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("results", nargs="+", metavar="LABEL=FILE", help="what dialog evaluate --json wrote")
    parser.add_argument("--json", type=Path, help="write the numbers there, in the form of results/*.json")
    parser.add_argument("--about", default="", help="description of the run and the contexts, for --json")
    parser.add_argument("--machine", default="", help="the machine of the evaluations, for --json")
    options = parser.parse_args()
    require(not options.json or options.machine, "--json: name the machine with --machine TEXT")
    entries, first = [], None
    for text in options.results:
        label, equals, path = text.rpartition("=")
        require(equals, f"{text}: give a label and a file, as in greedy=greedy.json")
        result: Any = read_json(Path(path))
        require("yardsticks" in result, f"{path}: not a result of dialog evaluate --json")
        first = first or result
        same = result["yardsticks"] == first["yardsticks"]
        require(same, f"{path}: scores of other contexts or references than {options.results[0]}")
        entries.append(entry_of(label, result, options.machine))
    assert first is not None
    people = numbers(first["yardsticks"]["true_response"])
    human = entries[0] | {"label": "true responses", "settings": [], "numbers": people}
    if options.json:
        write_entries(options.json, options.about, [*entries, human])
    print(table([*entries, human], *TABLES[NAME][1:]))


if __name__ == "__main__":
    run_script(main)
