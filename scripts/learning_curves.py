"""Draw validation perplexity against updates for some runs, one colour a head.

python scripts/learning_curves.py runs/small/*-1 --out docs/curves.svg
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter
from run_logs import errors_in_one_line, saved_config, validations

from lm.console.pictures import save_figure
from lm.heads.registry import HEADS

Curve = tuple[list[int], list[float]]  # updates, perplexities


def curve(run: Path) -> Curve:
    """Updates and validation perplexities of a run."""
    found = validations(run)
    return [step for step, _ in found], [perplexity for _, perplexity in found]


def draw(curves: Mapping[str, Sequence[Curve]], top: float | None, figure: Figure) -> None:
    """The curves of every head, in one panel that ends at ``top``."""
    axes = figure.subplots()
    for head, found in ((head, curves[head]) for head in HEADS if head in curves):
        ends = fmean(perplexities[-1] for _, perplexities in found)
        for number, (steps, perplexities) in enumerate(found):
            label = None if number else f"{head}: {ends:.1f} in the end"
            colour = HEADS[head].line_style["color"]
            axes.plot(steps, perplexities, color=colour, label=label, marker=".", linewidth=1.5)
    axes.set(xlabel="updates", ylabel="validation perplexity", yscale="log", ylim=(None, top))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(ScalarFormatter())
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="picture to write, .svg or .png")
    parser.add_argument("--top", type=float, help="highest perplexity shown")
    options = parser.parse_args()
    curves = defaultdict(list)
    for run in options.runs:
        head = saved_config(run)["config"]["head"]["kind"]
        curves[head].append(curve(run))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    save_figure([options.out], partial(draw, curves, options.top), size=(7, 4))


if __name__ == "__main__":
    with errors_in_one_line():
        main()
