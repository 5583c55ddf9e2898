"""Draw the pictures of the studies, from results/{bottleneck,backward,ptb_gradient,spam}.json.

python scripts/study_pictures.py --out docs     # bottleneck.svg and gradients.svg
"""

import argparse
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from run_logs import errors_in_one_line

from lm.console.pictures import save_figure
from lm.disk.storage import read_json
from lm.studies.backward_figure import STYLE, relay_panel, spam_panel
from lm.studies.bottleneck_figure import draw_bottleneck

RESULTS = Path(__file__).resolve().parent.parent / "results"
# label and style by end of the preset's name: a colour for a head, dotted with factor 1
DRAWN: dict[str, dict[str, Any]] = {
    "softmax": {"label": "softmax", "color": "#0072b2", "linestyle": ":"},
    "mos_k1_linear": {"label": "softmax ×4", "color": "#0072b2"},
    "mos_k1_scale1": {"label": "MoS ×1, K = 1", "color": "#777777", "linestyle": ":"},
    "mos_k1": {"label": "MoS ×4, K = 1", "color": "#777777"},
    "moc_scale1": {"label": "MoC ×1", "color": "#56b4e9", "linestyle": ":"},
    "moc": {"label": "MoC ×4", "color": "#56b4e9"},
    "mos_scale1": {"label": "MoS ×1", "color": "#d55e00", "linestyle": ":"},
    "mos": {"label": "MoS ×4", "color": "#d55e00"},
    "doc": {"label": "DOC ×4", "color": "#cc79a7"},
    "mfs": {"label": "MFS ×4", "color": "#009e73"},
    "cpr": {"label": "CPR ×4", "color": "#e69f00"},
}


def entries(name: str) -> list[dict[str, Any]]:
    """The entries of a file of results."""
    results: Any = read_json(RESULTS / f"{name}.json")
    found: list[dict[str, Any]] = results["entries"]
    return found


def draw_share(axes: Axes) -> None:
    """Share of the gradient's norm that reaches the states, over training."""
    _over_training(axes, "gradient_share")
    axes.set_ylabel("share of the norm at the states")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, fontsize=9, ncols=3, loc="upper center")


def draw_ranks(axes: Axes) -> None:
    """Effective rank of the gradient at the states, over training."""
    _over_training(axes, "gradient_rank_of_states")
    axes.set_ylabel("effective rank at the states, 500 tokens")


def _over_training(axes: Axes, key: str) -> None:
    """A number of heads of the Penn Treebank against the updates."""
    for row in entries("ptb_gradient"):
        name = row["config"].removeprefix("ptb_small_")
        if name in DRAWN:
            steps = row["numbers"]["over_training"]
            values = [found[key] for found in steps.values()]
            axes.plot([int(step) for step in steps], values, **DRAWN[name])
    axes.set_xlabel("updates")
    axes.set_title("Heads on the Penn Treebank", fontsize=10)
    axes.grid(alpha=0.25)


def draw(figure: Figure) -> None:
    """The four panels."""
    relay, spam, share, ranks = figure.subplots(2, 2).flat
    relay_panel(entries("backward")[0]["numbers"], relay)
    spam_panel(entries("spam")[0]["numbers"], spam)
    draw_share(share)
    draw_ranks(ranks)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    out = parser.parse_args().out
    save_figure([out / "gradients.svg"], draw, size=(11, 8.4), style=STYLE)
    draw_bottleneck(entries("bottleneck")[0]["numbers"], [out / "bottleneck.svg"])


if __name__ == "__main__":
    with errors_in_one_line():
        main()
