"""Tables and figures of :mod:`lm.studies.backward` and :mod:`lm.studies.spam`."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from lm.console.pictures import save_figure
from lm.console.tables import Table
from lm.studies.backward import UNTRAINED
from lm.studies.options import FULL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Panel = Callable[[Mapping[str, Any], Axes], None]

STYLE = {"font.size": 10}


def backward_means(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Means over the seeds by trainer: ``kl``, ``gradient_rank``, ``readers`` with ``kl`` and ``rank``."""
    found = {}
    for trainer in (UNTRAINED, *result["heads"]):
        rows = [row for row in result["rows"] if row["trainer"] == trainer]
        found[trainer] = {
            **{
                key: fmean([row[key] for row in rows])
                for key in ("kl", "gradient_rank", "gradient_effective_rank", "moved_effective_rank")
            },
            "readers": {
                name: {key: fmean([row["readers"][name][key] for row in rows]) for key in ("kl", "rank")}
                for name in result["heads"]
            },
        }
    return found


def backward_tables(result: Mapping[str, Any]) -> list[Table | str]:
    """Table of KL by trainer and reader, means over seeds, and one of the ranks."""
    settings, means = result["settings"], backward_means(result)
    kl, ranks = [], []
    for trainer, row in means.items():
        about = {"states trained by": trainer}
        trained = trainer != UNTRAINED
        kl.append(
            about
            | {"itself": row["kl"] if trained else None}
            | {f"read by {name}": reader["kl"] for name, reader in row["readers"].items()}
        )
        ranks.append(
            about
            | {"rank of the gradient": row["gradient_rank"] if trained else None}
            | {"effective": row["gradient_effective_rank"] if trained else None}
            | {"of all updates": row["moved_effective_rank"] if trained else None}
            | {f"read by {name}": reader["rank"] for name, reader in row["readers"].items()}
        )
    return [
        Table("KL(truth ‖ model), nats", kl),
        Table("Rank of the gradient at the states before training, and of the models", ranks),
        f"language: {settings['contexts']:,} contexts × {settings['vocab']:,} words, rank {settings['rank']};"
        f" E = {settings['sweep_size']}, H = {settings['hidden_size']}, K = {settings['components'][0]};"
        f" seeds {', '.join(map(str, settings['seeds']))}",
    ]


def draw_backward(result: Mapping[str, Any], paths: Sequence[Path]) -> None:
    """Draw KL by trainer and reader as a grid of numbers, as PNG or SVG by the suffix of each path.

    Raises the errors of :func:`lm.console.pictures.save_figure`.
    """
    count = len(result["heads"])
    _save(relay_panel, result, paths, size=(2.6 + 1.05 * count, 2.0 + 0.5 * count))


def relay_panel(result: Mapping[str, Any], axes: "Axes") -> None:
    """KL by the head that trained the states (down) and the head that reads them (across)."""
    means, names = backward_means(result), list(result["heads"])
    values = [[row["readers"][name]["kl"] for name in names] for row in means.values()]
    axes.imshow(
        [[math.log(max(value, 1e-6)) for value in row] for row in values], cmap="viridis_r", aspect="auto"
    )
    middle = sorted(value for row in values for value in row)[len(values) * len(names) // 2]
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            color = "white" if value > middle else "black"
            axes.text(x, y, f"{value:.3f}", ha="center", va="center", color=color)
    size = result["settings"]["sweep_size"]
    labels = [
        trainer if trainer == UNTRAINED else f"{trainer} ({row['gradient_rank']:.0f})"
        for trainer, row in means.items()
    ]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xticks(range(len(names)), [name.replace(" ", "\n", 1) for name in names])
    axes.set_ylabel("states trained by (rank of its gradient)")
    axes.set_xlabel(f"read by, on fixed states; E = {size}, {FULL} E = {result['settings']['hidden_size']}")
    axes.set_title("KL(truth ‖ model), nats: rank backward down, rank forward across", fontsize=10)


def spam_tables(result: Mapping[str, Any]) -> list[Table | str]:
    """Tables of accuracy and loss by number of symbols and head, means over seeds."""
    tables: list[Table | str] = []
    for key, title in (("accuracy", "Accuracy of the repeated symbol"), ("nll", "Loss, nats")):
        rows = [
            {"symbols": vocab} | {name: fmean(_spam(result, vocab, name, key)) for name in result["heads"]}
            for vocab in _sizes(result)
        ]
        tables.append(Table(title, rows))
    settings = result["settings"]
    return [
        *tables,
        f"{max(settings['steps']):,} updates for every head and V; a loss of log V is a guess",
    ]


def draw_spam(result: Mapping[str, Any], paths: Sequence[Path]) -> None:
    """Draw the loss relative to a guess against the number of symbols, as PNG or SVG.

    Raises the errors of :func:`lm.console.pictures.save_figure`.
    """
    _save(spam_panel, result, paths, size=(6.5, 4.2))


def spam_panel(result: Mapping[str, Any], axes: "Axes") -> None:
    """Loss as a share of that of a guess, against the number of symbols."""
    sizes = _sizes(result)
    for name, marker in zip(result["heads"], "osD^v*PX<>" * 9, strict=False):
        losses = [fmean(_spam(result, vocab, name, "nll")) / math.log(vocab) for vocab in sizes]
        axes.plot(sizes, losses, marker=marker, label=name)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{vocab:,}" for vocab in sizes])
    axes.minorticks_off()
    axes.axhline(1, color="#444444", linestyle="--", linewidth=1)
    axes.set(xlabel="symbols V", ylabel="loss / log V (1 = a guess)")
    axes.set_title(f"Texts of one repeated symbol, {max(result['settings']['steps']):,} updates", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9)


def _save(
    panel: "Panel", result: Mapping[str, Any], paths: Sequence[Path], *, size: tuple[float, float]
) -> None:
    def draw(figure: "Figure") -> None:
        panel(result, figure.subplots())

    save_figure(paths, draw, size=size, style=STYLE)


def _sizes(result: Mapping[str, Any]) -> list[int]:
    return sorted({row["vocab"] for row in result["rows"]})


def _spam(result: Mapping[str, Any], vocab: int, name: str, key: str) -> list[float]:
    return [row[key] for row in result["rows"] if (row["vocab"], row["head"]) == (vocab, name)]
