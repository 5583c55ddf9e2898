"""A Markdown table of evaluated runs: one row a model, mean over the seeds and, in brackets, their range.

Means of perplexities are geometric. Names of scores are those of ``dialog compare``.

python scripts/results_table.py --name test+test_multi_ref runs/small/*
python scripts/results_table.py --name test runs/ptb/* --analysis rank.json divergence.json
python scripts/results_table.py results/ptb_small.json

Runs of one model are in folders NAME-SEED. Columns are the results that all runs have. ``--analysis`` adds
what ``lm analyze NAME … --json NAME.json`` wrote. ``--json FILE --machine TEXT`` also writes the numbers in
the form of results/*.json, from which scripts/docs.py draws the tables of the pages. Of such a file, the
table has a row for each entry: config and hash, seeds, machine, date, and all numbers except series, which
are named below. Several seeds have a comma between them, precision and recall a slash.
"""

import json
import shlex
import sys
from argparse import Namespace
from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from command_line import Options, run_script
from pages.result_entries import (
    ANALYSED,
    HASHED,
    MEASUREMENTS,
    Result,
    at,
    entry,
    hash_of_run,
    load,
    numbers_of_runs,
    torch_of,
    write_entries,
)
from pages.table_forms import markdown, mean_of, precision_recall

from lm.config.settings import COMMAND_LINE
from lm.disk.jsonfile import read_json
from lm.errors import require
from lm.numbers import NOTHING, number
from lm.runs.inputs import CONFIG
from lm.runs.pooling import FREE_KEYS

PROVENANCE = ("label", "config", "config_sha256", "seeds", "machine", "torch", "date")  # keys of an entry
COLUMNS = {  # form and name of the number by heading
    "valid ppl": (".2f", "valid_perplexity"),
    "perplexity": (".2f", "test_perplexity"),
    "perplexity_batch_mean": (".2f", "perplexity_batch_mean"),
    "legacy BLEU-1 P": (".3f", "bleu_legacy_1.precision"),
    "legacy BLEU-1 R": (".3f", "bleu_legacy_1.recall"),
    "legacy BLEU-4 P": (".3f", "bleu_legacy_4.precision"),
    "legacy BLEU-4 R": (".3f", "bleu_legacy_4.recall"),
    "undefined share": (".3f", "undefined"),
    "BLEU-4 P": (".3f", "bleu_4.precision"),
    "BLEU-4 R": (".3f", "bleu_4.recall"),
    "distinct-2": (".3f", "inter_distinct_2"),
    "length": (".1f", "mean_length"),
    "most common": (".3f", "same_answer"),
    "rank": (",.0f", "rank"),
    "divergence": (".2f", "divergence"),
    "updates": (",.0f", "updates"),
    "minutes": (".1f", "minutes"),
}


def cell(column: str, values: Sequence[Any]) -> str:
    """The mean, and the range where there are several."""
    form, name = COLUMNS[column]
    mean = format(mean_of(name, values), form)
    return mean if len(values) == 1 else f"{mean} [{min(values):{form}}, {max(values):{form}}]"


def shown(result: Result, column: str) -> Any:
    """The number of a column, or None if the run was not measured this way."""
    name, _, part = COLUMNS[column][1].partition(".")
    found = at(result, MEASUREMENTS[name])
    return found[part] if found is not None and part else found


def entry_of_runs(model: str, runs: Sequence[Path], results: Sequence[Result], machine: str) -> Result:
    """The entry of a model from runs of one config and different seeds, with the keys of the command line."""
    hashes, seeds = {hash_of_run(run) for run in runs}, [result["seed"] for result in results]
    require(len(hashes) == 1, f"{model}: its runs have different configs; give each config a name of its own")
    require(len(set(seeds)) == len(seeds), f"{model}: two of its runs have the same seed; leave one out")
    saved = read_json(runs[0] / CONFIG)
    return entry(
        model,
        numbers_of_runs(results),
        seeds,
        machine,
        config=model,
        config_hash=hashes.pop(),
        settings=[
            f"{key}={json.dumps(reduce(getitem, key.split('.'), saved['config']))}"
            for key, where in saved.get("provenance", {}).items()
            if where == COMMAND_LINE and key not in FREE_KEYS - HASHED
        ],
        command=f"python {shlex.join(sys.argv)}",
        torch_version=torch_of(runs[0]),
    )


def table_of_file(path: Path) -> str:
    """Entries of a file of results, with all their numbers. Series are named below the table."""
    found: Any = read_json(path)
    entries = found.get("entries") if isinstance(found, dict) else None
    whole = isinstance(entries, list) and all(
        isinstance(one, dict) and isinstance(one.get("numbers"), dict) for one in entries
    )
    require(whole and entries, f"{path}: has no entries; name a file of results, or runs with --name")
    names = {name: None for one in entries for name, value in one["numbers"].items() if is_shown(value)}
    rows = [
        [
            *(str(one.get(key, NOTHING)) for key in PROVENANCE),
            *(text_of(name, one["numbers"].get(name)) for name in names),
        ]
        for one in entries
    ]
    left_out = {name: None for one in entries for name in one["numbers"] if name not in names}
    note = f"\n\nNot shown: {', '.join(left_out)}" if left_out else ""
    return markdown([*PROVENANCE, *names], rows) + note


def is_shown(value: object) -> bool:
    """True for a number, precision and recall, or a list of these with one for each seed."""
    parts = value if isinstance(value, list) else [value]
    return all(
        isinstance(part, int | float) or (isinstance(part, dict) and "recall" in part) for part in parts
    )


def text_of(name: str, value: Any) -> str:
    """What :func:`is_shown` allows, as text; a dash for anything else."""
    if not is_shown(value):
        return NOTHING
    if isinstance(value, list):
        return ", ".join(text_of(name, one) for one in value)
    return precision_recall(value) if isinstance(value, dict) else number(name, value)


def table_of_runs(options: Namespace) -> str:
    """Models of runs, a row each; ``--json`` also writes their entries."""
    if not options.name:
        kept = sorted({file.stem for run in options.runs for file in (run / "evaluation").glob("*.json")})
        require(not kept, f"name the evaluation of the runs with --name: {', '.join(kept)}")
    require(not options.json or options.machine, "--json: name the machine with --machine TEXT")
    unknown = [path for path in options.analysis if path.stem not in ANALYSED]
    require(not unknown, f"--analysis: name each file as its analysis: {', '.join(ANALYSED)}")
    analyses: dict[str, Any] = {path.stem: read_json(path) for path in options.analysis}
    results = [load(run, options.name, analyses) for run in options.runs]
    columns = [one for one in COLUMNS if all(shown(result, one) is not None for result in results)]
    models: dict[str, list[Result]] = defaultdict(list)
    folders: dict[str, list[Path]] = defaultdict(list)
    for run, result in zip(options.runs, results, strict=True):
        model = run.name.removesuffix(f"-{result['seed']}")
        models[model].append(result)
        folders[model].append(run)
    if options.json:
        entries = [
            entry_of_runs(model, folders[model], found, options.machine) for model, found in models.items()
        ]
        write_entries(options.json, f"evaluation {options.name}", entries)
    rows = []
    for model, found in models.items():
        cells = [cell(column, [shown(one, column) for one in found]) for column in columns]
        seeds = ", ".join(str(result["seed"]) for result in found)
        rows.append([model, f"{found[0]['parameters']:,}", seeds, *cells])
    return markdown(["model", "parameters", "seeds", *columns], rows)


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="runs, or files of results")
    parser.add_argument("--name", default="", help="which evaluation of runs, as named in RUN/evaluation")
    parser.add_argument("--analysis", nargs="*", type=Path, default=[], help="JSON files of lm analyze")
    parser.add_argument("--json", type=Path, help="write the numbers there, in the form of results/*.json")
    parser.add_argument("--machine", default="", help="the machine that trained the runs, for --json")
    options = parser.parse_args()
    if all(path.suffix == ".json" for path in options.runs):
        require(not (options.name or options.analysis or options.json), "a file of results takes no options")
        print("\n\n".join(map(table_of_file, options.runs)))
    else:
        print(table_of_runs(options))


if __name__ == "__main__":
    run_script(main)
