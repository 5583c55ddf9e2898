"""Draw rank forward, rank backward and the gradients of heads, from results/{backward,gradient,spam}.json.

python scripts/gradient_figure.py --out docs/gradients.svg
"""

import argparse
import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from run_logs import errors_in_one_line

from lm.console.pictures import save_figure
from lm.disk.storage import read_json

RESULTS = Path(__file__).resolve().parent.parent / "results"
READERS = {"by_softmax": "softmax", "by_mos_1": "MoS ×1", "by_mos_4": "MoS ×4", "by_mos_10": "MoS ×10",
           "by_full": "full\nsoftmax"}  # fmt: skip


def entries(name: str) -> list[dict[str, Any]]:
    """The entries of a file of results."""
    results: Any = read_json(RESULTS / f"{name}.json")
    found: list[dict[str, Any]] = results["entries"]
    return found


def draw_relay(axes: Axes) -> None:
    """KL by the head that trained the states (down) and the head that reads them (across)."""
    rows = entries("backward")
    values = [[sum(row["numbers"][key]) / len(row["numbers"][key]) for key in READERS] for row in rows]
    axes.imshow([[math.log(value) for value in row] for row in values], cmap="viridis_r", aspect="auto")
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            color = "white" if value > 0.1 else "black"
            axes.text(x, y, f"{value:.3f}", ha="center", va="center", color=color, fontsize=9)
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axes.set_xticks(range(len(READERS)), [*READERS.values()])
    axes.set(xlabel="head that reads the states", ylabel="head that trained the states")
    axes.set_title("KL(truth ‖ model), nats", fontsize=10)


def draw_ranks(axes: Axes) -> None:
    """Effective ranks of the gradient at the states and of the update that follows."""
    rows = [row for row in entries("gradient") if "7,000" not in row["label"]]
    for shift, key, label in ((-0.2, "states", "gradient at states"), (0.2, "update", "update of log P")):
        heights = [row["numbers"][f"effective_rank_of_{key}"] for row in rows]
        axes.bar([place + shift for place in range(len(rows))], heights, 0.4, label=label)
    labels = [row["label"].replace("MoS ", "").replace(", ", "\n") for row in rows]
    axes.set_xticks(range(len(rows)), labels)
    axes.set_ylabel("effective rank of 500 tokens")
    axes.set_title("Penn Treebank, 600 updates", fontsize=10)
    axes.legend(frameon=False, fontsize=9)


def draw_spam(axes: Axes) -> None:
    """Loss as a share of that of a guess, against the number of symbols."""
    sizes = (1000, 10_000, 100_000)
    for row, marker in zip(entries("spam"), "osD^", strict=True):
        losses = [row["numbers"][f"nll_{size}"] / math.log(size) for size in sizes]
        axes.plot(sizes, losses, marker=marker, label=row["label"])
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set(xlabel="symbols V", ylabel="loss / log V (1 = a guess)")
    axes.set_title("Texts of one repeated symbol, 300 updates", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9)


def draw(figure: Figure) -> None:
    """The three panels."""
    for axes, panel in zip(figure.subplots(1, 3), (draw_relay, draw_ranks, draw_spam), strict=True):
        panel(axes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="picture to write, .svg or .png")
    options = parser.parse_args()
    save_figure([options.out], draw, size=(14, 4.2), style={"text.parse_math": False})


if __name__ == "__main__":
    with errors_in_one_line():
        main()
