"""Figures as PNG or SVG files, chosen by the suffix. Equal figures have equal bytes."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm.disk.storage import write_atomic
from lm.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
_SAME_BYTES = {"svg.hashsalt": "highrank", "svg.fonttype": "path"}
_PLAIN_TEXT = {"text.parse_math": False}  # names may have dollar signs
_METADATA = {".png": {"Software": None}, ".svg": {"Date": None}}  # neither versions nor times


def require_format(path: Path) -> None:
    """Raise ConfigError for a suffix other than those of PNG and SVG."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: pictures end in {' or '.join(SUFFIXES)}")


def save_figure(
    paths: Sequence[Path],
    draw: Callable[["Figure"], None],
    *,
    size: tuple[float, float],
    style: Mapping[str, Any] | None = None,
) -> None:
    """Let ``draw`` fill an empty figure of ``size`` inches, and write it to every path atomically.

    ``style`` has matplotlib settings (``rcParams``) for the figure.

    Raises:
        ConfigError: a suffix of another format; nothing is drawn then.
        StorageError: a file cannot be written.
    """
    for path in paths:
        require_format(path)
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {**_SAME_BYTES, **_PLAIN_TEXT, **(style or {})}
    with mpl.rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        for path in paths:
            content = io.BytesIO()
            figure.savefig(content, format=path.suffix[1:], dpi=150, metadata=_METADATA[path.suffix])
            write_atomic(path, content.getvalue())
