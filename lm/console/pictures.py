"""Figures as PNG or SVG files, chosen by the suffix. Equal figures have equal bytes."""

import io
import re
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


_POWER = re.compile(r"\$\\mathdefault\{(?P<factor>.*?)(?:\\times)?(?P<base>\d+)\^\{(?P<power>.*)\}\}\$")
_RAISED = str.maketrans("-−0123456789", "⁻⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


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
        _write_powers(figure)
        for path in paths:
            content = io.BytesIO()
            figure.savefig(content, format=path.suffix[1:], dpi=150, metadata=_METADATA[path.suffix])
            write_atomic(path, content.getvalue())


def _write_powers(figure: "Figure") -> None:
    """Let logarithmic axes without a format of their own show 10⁻³: matplotlib's TeX would stay unread."""
    from matplotlib.ticker import LogFormatterMathtext, LogFormatterSciNotation

    class Powers(LogFormatterSciNotation):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return plain_power(super().__call__(x, pos))

    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        scale: Any = axis.get_transform()
        if isinstance(axis.get_major_formatter(), LogFormatterMathtext):
            axis.set_major_formatter(Powers(scale.base))
        if isinstance(axis.get_minor_formatter(), LogFormatterMathtext):
            axis.set_minor_formatter(Powers(scale.base, labelOnlyBase=False))


def plain_power(text: str) -> str:
    """A label of matplotlib's logarithmic axes in Unicode, such as 2×10⁻³."""
    found = _POWER.fullmatch(text)
    if found is None:
        return text
    factor = f"{found['factor']}×" if found["factor"] else ""
    return f"{factor}{found['base']}{found['power'].translate(_RAISED)}"
