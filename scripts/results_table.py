"""A Markdown table of evaluated runs: one row a model, mean over the seeds and, in brackets, their range.

python scripts/results_table.py --name test+test_multi_ref runs/small/*
python scripts/results_table.py --name test runs/ptb/* --analysis rank.json divergence.json

Runs of one model are in folders NAME-SEED. Columns are the results that all runs have. ``--analysis`` adds
what ``lm analyze … --json`` wrote.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from run_logs import errors_in_one_line, records, saved_config, validations

from lm.disk.storage import read_json
from lm.errors import require
from lm.runs.evaluations import load_evaluation

Result = dict[str, Any]

COLUMNS: dict[str, tuple[str, Callable[[Result], float]]] = {
    "valid ppl": (".2f", lambda r: r["valid_perplexity"]),
    "perplexity": (".2f", lambda r: r["perplexity"]),
    "batch mean": (".2f", lambda r: r["perplexity_batch_mean"]),
    "BLEU-1 P": (".3f", lambda r: r["bleu_legacy"]["1"]["precision"]),
    "BLEU-1 R": (".3f", lambda r: r["bleu_legacy"]["1"]["recall"]),
    "BLEU-4 P": (".3f", lambda r: r["bleu_legacy"]["4"]["precision"]),
    "BLEU-4 R": (".3f", lambda r: r["bleu_legacy"]["4"]["recall"]),
    "undefined": (".0%", lambda r: r["legacy_undefined_share"]),
    "today's BLEU-4 P": (".3f", lambda r: r["bleu"]["4"]["precision"]),
    "today's BLEU-4 R": (".3f", lambda r: r["bleu"]["4"]["recall"]),
    "inter-distinct-2": (".3f", lambda r: r["inter_distinct_2"]),
    "length": (".1f", lambda r: r["mean_length"]),
    "same answer": (".3f", lambda r: r["most_common_share"]),
    "rank": (",.0f", lambda r: r["rank"]),
    "divergence": (".2f", lambda r: r["expected_divergence"]),
    "updates": (",.0f", lambda r: r["updates"]),
    "minutes": (".0f", lambda r: r["minutes"]),
}


def load(run: Path, name: str, analyses: Sequence[Result]) -> Result:
    """Everything that is known of a run."""
    result = load_evaluation(run, name, (), (), saved_config(run)["family"]).result
    for analysis in analyses:
        found = {Path(key).resolve(): value for key, value in analysis["runs"].items()}
        require(run.resolve() in found, f"{run}: not in what --analysis has; analyse it, too")
        result |= found[run.resolve()]
    result["updates"] = records(run / "metrics.jsonl")[-1]["step"]
    if valid := validations(run):
        result["valid_perplexity"] = min(perplexity for _, perplexity in valid)
    if timing := records(run / "timing.jsonl"):  # of very short runs it is empty
        result["minutes"] = timing[-1]["seconds"] / 60
    return result


def cell(values: Sequence[float], form: str) -> str:
    """The mean, and the range where there are several."""
    mean = format(fmean(values), form)
    return mean if len(values) == 1 else f"{mean} [{min(values):{form}}, {max(values):{form}}]"


def has(result: Result, column: str) -> bool:
    """Whether a run was measured so."""
    try:
        COLUMNS[column][1](result)
    except KeyError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--name", required=True, help="which evaluation, as named in RUN/evaluation")
    parser.add_argument("--analysis", nargs="*", type=Path, default=[], help="JSON files of lm analyze")
    options = parser.parse_args()
    analyses: list[Any] = [read_json(path) for path in options.analysis]
    results = [load(run, options.name, analyses) for run in options.runs]
    columns = [column for column in COLUMNS if all(has(result, column) for result in results)]
    models: dict[str, list[Result]] = defaultdict(list)
    for run, result in zip(options.runs, results, strict=True):
        models[run.name.removesuffix(f"-{result['seed']}")].append(result)
    print("| model | parameters | seeds | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 3) + "|")
    for model, found in models.items():
        chosen = (COLUMNS[column] for column in columns)
        cells = [cell([value(result) for result in found], form) for form, value in chosen]
        seeds = ", ".join(str(result["seed"]) for result in found)
        print(f"| {model} | {found[0]['parameters']:,} | {seeds} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    with errors_in_one_line():
        main()
