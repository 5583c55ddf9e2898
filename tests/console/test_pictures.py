"""Labels of logarithmic axes, which show no TeX."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from lm.console.pictures import plain_power, save_figure


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (r"$\mathdefault{10^{-13}}$", "10⁻¹³"),
        (r"$\mathdefault{10^{0}}$", "10⁰"),
        (r"$\mathdefault{2\times10^{4}}$", "2×10⁴"),
        (r"$\mathdefault{2^{5}}$", "2⁵"),
        ("0.5", "0.5"),
        ("", ""),
    ],
)
def test_powers_are_unicode(text: str, plain: str) -> None:
    assert plain_power(text) == plain


@pytest.mark.parametrize(
    ("values", "label"), [((1e-12, 1e-3, 1.0), "10⁻¹²"), ((20.0, 30.0, 40.0), "3×10¹")], ids=str
)
def test_a_logarithmic_axis_shows_no_tex(tmp_path: Path, values: tuple[float, ...], label: str) -> None:
    """An SVG has each label as a comment beside its paths. Minor ticks have labels within a power of ten."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot(values, values)
        axes.set(xscale="log")

    save_figure([tmp_path / "a.svg"], draw, size=(4, 3))
    drawn = (tmp_path / "a.svg").read_text("utf-8")
    assert f"<!-- {label} -->" in drawn
    assert "mathdefault" not in drawn
