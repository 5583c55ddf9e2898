"""A Markdown table of evaluated runs: one row a model, mean over the seeds and, in brackets, their range.

python scripts/results_table.py --name test+test_multi_ref runs/small/*
python scripts/results_table.py --name test runs/ptb/* --analysis rank.json divergence.json

Runs of one model are in folders NAME-SEED. Columns are the results that all runs have. ``--analysis`` adds
what ``lm analyze … --json`` wrote.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

Result = dict[str, Any]

COLUMNS: dict[str, tuple[str, Callable[[Result], float]]] = {
    "valid ppl": (".2f", lambda r: r["valid_perplexity"]),
    "perplexity": (".2f", lambda r: r["perplexity"]),
    "batch mean": (".2f", lambda r: r["perplexity_batch_mean"]),
    "BLEU-1 P": (".3f", lambda r: r["bleu_legacy"]["1"]["precision"]),
    "BLEU-1 R": (".3f", lambda r: r["bleu_legacy"]["1"]["recall"]),
    "BLEU-4 P": (".3f", lambda r: r["bleu_legacy"]["4"]["precision"]),
    "BLEU-4 R": (".3f", lambda r: r["bleu_legacy"]["4"]["recall"]),
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
    result: Result = json.loads((run / "evaluation" / f"{name}.json").read_text())["result"]
    for analysis in analyses:
        found = {Path(key).resolve(): value for key, value in analysis["runs"].items()}
        result |= found[run.resolve()]
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    valid = [line["perplexity"] for line in metrics if line["split"] == "valid"]
    timing = [json.loads(line)["seconds"] for line in (run / "timing.jsonl").read_text().splitlines()]
    return result | {
        "valid_perplexity": min(valid), "updates": metrics[-1]["step"], "minutes": max(timing) / 60
    }  # fmt: skip


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
    analyses = [json.loads(path.read_text()) for path in options.analysis]
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
    main()
