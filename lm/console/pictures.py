"""Figures as files: PNG or SVG by the suffix, and the same bytes for the same figure."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm.disk.storage import write_atomic
from lm.errors import ConfigError, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
_SAME_BYTES = {"svg.hashsalt": "highrank", "svg.fonttype": "path"}
_METADATA = {".png": {"Software": None}, ".svg": {"Date": None}}  # neither versions nor times

# What a head looks like in every picture: Okabe and Ito's colours, which the colour-blind tell apart; the
# hollow markers of heads that coincide nest.
STYLES: dict[str, dict[str, Any]] = {
    "softmax": {"color": "#0072B2", "marker": "o", "markersize": 11, "fillstyle": "none", "linewidth": 2.5},
    "sigsoftmax": {"color": "#E69F00", "marker": "^", "markersize": 6, "linestyle": (0, (5, 2))},
    "sigmoid": {"color": "#F0E442", "marker": "v", "markersize": 6},
    "relu": {"color": "#000000", "marker": "x", "markersize": 6},
    "moc": {"color": "#56B4E9", "marker": "s", "markersize": 5, "linestyle": (0, (1, 1.5))},
    "mos": {"color": "#D55E00", "marker": "D", "markersize": 7, "fillstyle": "none", "linewidth": 2.5},
    "moss": {"color": "#009E73", "marker": "*", "markersize": 7, "linestyle": (0, (5, 2))},
    "mixtape": {"color": "#CC79A7", "marker": "P", "markersize": 7},
    "plif": {"color": "#999933", "marker": "X", "markersize": 6},
    "doc": {"color": "#882255", "marker": "p", "markersize": 6, "linestyle": (0, (5, 2))},
}


def require_format(path: Path) -> None:
    """ConfigError for the suffix of a format that pictures do not come in."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"{visible(path)}: pictures end in {' or '.join(FORMATS)}")


def save_figure(
    paths: Sequence[Path],
    draw: Callable[["Figure"], None],
    *,
    size: tuple[float, float],
    style: Mapping[str, Any] | None = None,
) -> None:
    """Write what ``draw`` puts on an empty figure of ``size`` inches to every path, atomically.

    ``style`` has settings of matplotlib (``rcParams``) that the figure is drawn and saved under.

    Raises:
        ConfigError: a suffix of another format; nothing is drawn then.
        StorageError: a file cannot be written.
    """
    for path in paths:
        require_format(path)
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {**_SAME_BYTES, **(style or {})}
    with mpl.rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        for path in paths:
            content = io.BytesIO()
            figure.savefig(content, format=path.suffix[1:], dpi=150, metadata=_METADATA[path.suffix])
            write_atomic(path, content.getvalue())
