"""Draw validation perplexity against updates for some runs, one colour a head.

python scripts/learning_curves.py runs/small/*-1 --out docs/curves.svg
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {
    "softmax": "#555555",
    "sigsoftmax": "#b07aa1",
    "moc": "#4e79a7",
    "mos": "#e15759",
    "moss": "#59a14f",
}


def curve(run: Path) -> tuple[list[int], list[float]]:
    """Updates and validation perplexities of a run."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    records = [line for line in lines if line["split"] == "valid"]
    return [record["step"] for record in records], [record["perplexity"] for record in records]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument(
        "--out", type=Path, required=True, help="picture to write; the ending says which kind"
    )
    parser.add_argument("--top", type=float, help="highest perplexity shown")
    options = parser.parse_args()
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    curves = defaultdict(list)
    for run in options.runs:
        head = json.loads((run / "config.json").read_text())["config"]["head"]["kind"]
        curves[head].append(curve(run))
    for head, found in curves.items():
        ends = fmean(perplexities[-1] for _, perplexities in found)
        for number, (steps, perplexities) in enumerate(found):
            label = None if number else f"{head}: {ends:.1f} in the end"
            axes.plot(steps, perplexities, color=COLOURS.get(head), label=label, marker=".", linewidth=1.5)
    axes.set(xlabel="updates", ylabel="validation perplexity", yscale="log", ylim=(None, options.top))
    axes.yaxis.set_major_formatter(matplotlib.ticker.ScalarFormatter())
    axes.yaxis.set_minor_formatter(matplotlib.ticker.ScalarFormatter())
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=150, metadata={"Date": None} if options.out.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
