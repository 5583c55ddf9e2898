"""The pictures of docs/ that show results/*.json. scripts/docs.py writes them.

bottleneck.svg, gradients.svg and reverse_copy.svg show what `lm bottleneck`, `lm analyze gradient` and
`lm reverse-copy` measured. NAME_curves.svg shows the validations of the trainings of
scripts/tables/NAME.toml, and starts.svg those with two starts of the output bias.
"""

from functools import partial
from math import log
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from lm.console.pictures import save_figure
from lm.heads.registry import HEADS
from lm.studies.backward_figure import STYLE, relay_panel, spam_panel
from lm.studies.bottleneck_figure import draw_bottleneck
from lm.studies.copying_figure import draw_copying
from pages.compared import LEADING
from pages.result_entries import entries_of, head_of
from pages.study_tables import study_results

CURVES = ("switchboard_bleu",)  # tables whose entries have the validations of their trainings
RESULTS = Path(__file__).resolve().parents[2] / "results"
DRAWN = (  # by end of the preset's name
    *("softmax", "mos_k1_linear", "mos_k1_scale1", "mos_k1", "moc_scale1", "moc", "mos_scale1", "mos"),
    *("doc", "mfs", "cpr"),
)
STARTED = ("mos", "mos_k1_linear", "softmax")  # heads of starts.svg
ONE_COMPONENT = (
    "#777777"  # colour of the controls with one component and tanh, and of softmax ×4 beside softmax
)


def style_of(head: str) -> dict[str, Any]:
    """Label and line of a head: the colour of its kind, dotted with factor 1."""
    kind = "softmax" if head == "mos_k1_linear" else head.removesuffix("_scale1")
    return {
        "label": LEADING[head][0] if head in LEADING else head,
        "color": ONE_COMPONENT if kind == "mos_k1" else HEADS[kind].line_style["color"],
        "linestyle": ":" if head == "softmax" or head.endswith("_scale1") else "-",
    }


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
    for row in entries_of(RESULTS, "ptb_gradient"):
        if (head := head_of(row)) in DRAWN:
            steps = row["numbers"]["over_training"]
            values = [found[key] for found in steps.values()]
            axes.plot([int(step) for step in steps], values, **style_of(head))
    axes.set_xlabel("updates")
    axes.set_title("Heads on the Penn Treebank", fontsize=10)
    axes.grid(alpha=0.25)


def draw_curves(figure: Figure, name: str) -> None:
    """Validation perplexity during trainings, with a colour for a head and a line for each seed."""
    axes, labelled = figure.subplots(), set()
    for row in entries_of(RESULTS, name):
        head, curve = head_of(row), row["numbers"].get("valid_curve")
        if head in DRAWN and curve:
            style = style_of(head) | ({"label": None} if head in labelled else {})
            axes.plot([int(step) for step in curve], list(curve.values()), marker=".", **style)
            labelled.add(head)
    axes.set(xlabel="updates", ylabel="validation perplexity", yscale="log")
    for formatted in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        formatted(ScalarFormatter())
    axes.grid(alpha=0.25, which="both")
    axes.legend(frameon=False)


def draw_starts(figure: Figure) -> None:
    """Two panels: nats ahead of softmax, whose bias begins at zero, over training, seed 1."""
    panels = figure.subplots(1, 2)
    tables = (("ptb_small", "Penn Treebank"), ("switchboard_bleu", "Switchboard"))
    for axes, (name, title) in zip(panels, tables, strict=True):
        zero, started = (_validations(file) for file in (name, f"{name}_frequencies"))
        for head in STARTED:
            style = style_of(head) | {"linestyle": "-"}
            style |= {"color": ONE_COMPONENT} if head == "mos_k1_linear" else {}
            for curves, own in ((started, {}), (zero, {"linestyle": "--", "label": None})):
                steps = curves[head].keys() & zero["softmax"].keys()
                ahead = {int(step): log(zero["softmax"][step] / curves[head][step]) for step in steps}
                axes.plot(*zip(*sorted(ahead.items()), strict=True), marker=".", **style | own)
        axes.set_xlabel("updates")
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("nats ahead of softmax, validation")
    panels[0].legend(frameon=False, title="bias at the frequencies\n(dashed: at zero)")


def _validations(name: str) -> dict[str, dict[str, float]]:
    """Validation perplexity by update of the trainings with seed 1 of a table, by head."""
    found = {
        head_of(row): row["numbers"].get("valid_curve")
        for row in entries_of(RESULTS, name)
        if row["seeds"] == [1]
    }
    return {head: curve for head, curve in found.items() if curve}


def draw_gradients(figure: Figure) -> None:
    """Four panels: trainers and readers, one repeated symbol, and gradients over training."""
    relay, spam, share, ranks = figure.subplots(2, 2).flat
    relay_panel(study_results(RESULTS, "backward")[0], relay)
    spam_panel(study_results(RESULTS, "spam")[0], spam)
    draw_share(share)
    draw_ranks(ranks)


def result_pictures(folder: Path) -> dict[str, str]:
    """The pictures by file name, drawn in ``folder``: two runs draw equal text with the same matplotlib."""
    save_figure([folder / "gradients.svg"], draw_gradients, size=(11, 8.4), style=STYLE)
    save_figure([folder / "starts.svg"], draw_starts, size=(10, 4), style=STYLE)
    for name in CURVES:
        save_figure(
            [folder / f"{name}_curves.svg"], partial(draw_curves, name=name), size=(7, 4), style=STYLE
        )
    draw_bottleneck(study_results(RESULTS, "bottleneck")[0], [folder / "bottleneck.svg"])
    draw_copying(study_results(RESULTS, "reverse_copy")[0], [folder / "reverse_copy.svg"])
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
