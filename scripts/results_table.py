"""A Markdown table of evaluated runs: one row a head, mean over the seeds and, in brackets, their range.

python scripts/results_table.py --name test+test_multi_ref runs/small/*
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

COLUMNS: dict[str, tuple[str, Callable[[dict[str, Any]], float]]] = {
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
}


def cell(values: Sequence[float], form: str) -> str:
    """The mean, and the range where there are several."""
    mean = format(fmean(values), form)
    return mean if len(values) == 1 else f"{mean} [{min(values):{form}}, {max(values):{form}}]"


def minutes(run: Path) -> float:
    """Minutes of training, resumes included."""
    lines = (run / "timing.jsonl").read_text().splitlines()
    return max(json.loads(line)["seconds"] for line in lines) / 60


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--name", required=True, help="which evaluation, as named in RUN/evaluation")
    options = parser.parse_args()
    results: dict[str, list[tuple[Path, dict[str, Any]]]] = defaultdict(list)
    for run in options.runs:
        result = json.loads((run / "evaluation" / f"{options.name}.json").read_text())["result"]
        results[result["head"]].append((run, result))
    print("| head | parameters | seeds | minutes | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 4) + "|")
    for head, found in results.items():
        cells = [cell([value(result) for _, result in found], form) for form, value in COLUMNS.values()]
        seeds = ", ".join(str(result["seed"]) for _, result in found)
        spent = cell([minutes(run) for run, _ in found], ".0f")
        print(f"| {head} | {found[0][1]['parameters']:,} | {seeds} | {spent} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
