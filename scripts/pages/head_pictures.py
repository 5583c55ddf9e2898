"""The picture of docs/heads.md: the way from a hidden state to a distribution, a row for each head.

scripts/docs.py writes it, from the rows of ``HEADS``.
"""

from dataclasses import dataclass
from html import escape

from lm.heads.registry import HEADS, HeadRow

SHOWN = {"sigsoftmax": "exp · σ", "sigmoid": "σ", "relu": "relu + ε"}
ROW, TOP, LEFT, WIDTH = 50, 26, 104, 900  # height of a row and of its boxes, place of the first box, width
BEHIND = 4  # offset of the boxes of further components
LAYERS = {"lower_components", "facet_layers"}  # keys of the kinds that read several layers


@dataclass(frozen=True)
class Box:
    """A step: its text, if every component does it, and if it mixes the components."""

    text: str
    each: bool = False
    mixes: bool = False

    @property
    def width(self) -> float:
        """Width of the box in pixels."""
        return 18 + 7.4 * len(self.text)


def steps(row: HeadRow) -> list[Box]:
    """Steps of a kind of head, from the hidden state to P."""
    normalised = f"{SHOWN.get(row.link, row.link)}, normalised"
    if not row.is_mixture:
        bend = [Box("learned f")] if "intervals" in row.fields else []
        return [Box("h"), Box("W h + b"), *bend, Box(normalised)]
    states = "h of several layers" if LAYERS.intersection(row.fields) else "h"
    contexts = [Box(states), Box("cₖ = s · tanh(Wₖ h + bₖ)", each=True)]
    if row.mixes == "contexts":
        return [*contexts, Box("Σ πₖ cₖ", mixes=True), Box("W c + b"), Box(normalised)]
    if row.mixes == "logits":
        return [*contexts, Box("zₖ = W cₖ", each=True), Box("Σ πₓₖ zₓₖ + b", mixes=True), Box(normalised)]
    words = [Box("W cₖ + b", each=True), Box(normalised, each=True)]
    return [*contexts, *words, Box("Σ πₖ pₖ", mixes=True)]


def drawn_row(label: str, boxes: list[Box], y: float) -> list[str]:
    """Elements of the row of a head, whose boxes begin at height ``y``."""
    middle = y + TOP / 2
    elements = [f'<text x="8" y="{middle + 5:g}" font-weight="bold">{escape(label)}</text>']
    x: float = LEFT
    for box in boxes:
        behind = (2, 1, 0) if box.each else (0,)
        fill = "#f4c7a1" if box.mixes else "#dbe9f6" if box.each else "#f3f3f3"
        elements += [
            f'<rect x="{x + BEHIND * n:.1f}" y="{y - BEHIND * n:g}" width="{box.width:.1f}" height="{TOP}"'
            f' rx="4" fill="{fill}" stroke="#555"/>'
            for n in behind
        ]
        center = x + box.width / 2
        elements.append(
            f'<text x="{center:.1f}" y="{middle + 5:g}" text-anchor="middle">{escape(box.text)}</text>'
        )
        x += box.width + BEHIND * behind[0]
        elements.append(f'<path d="M{x + 4:.1f} {middle:g}h16m-5 -4l5 4l-5 4" fill="none" stroke="#555"/>')
        x += 24
    elements.append(f'<text x="{x + 2:.1f}" y="{middle + 5:g}">P</text>')
    return elements


def head_picture() -> str:
    """The SVG with a row for each kind of head."""
    height = ROW * len(HEADS) + 14
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for number, row in enumerate(HEADS.values()):
        lines += drawn_row(row.label, steps(row), 24 + ROW * number)
    return "\n".join([*lines, "</svg>"]) + "\n"
