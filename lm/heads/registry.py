"""Registry of the kinds of output heads, free of torch: schema, figures and analyses read its rows.

Colours of lines are those of Okabe and Ito, which colour-blind people tell apart. The hollow markers of heads
that coincide nest.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Mixes = Literal["nothing", "contexts", "logits", "probabilities"]


@dataclass(frozen=True)
class HeadRow:
    """One kind of head.

    ``fields`` are the keys of ``HeadConfig`` that other kinds may lack. The logits of a ``linear`` kind are
    one product of rank E. ``style`` is that of its line in figures, in the words of matplotlib.
    """

    mixes: Mixes
    label: str
    style: Mapping[str, Any]
    link: str = "exp"  # of LINKS in lm/heads/links.py
    prior_link: str = "exp"
    linear: bool = False
    fields: tuple[str, ...] = ()

    @property
    def is_mixture(self) -> bool:
        """Whether the head has components."""
        return self.mixes != "nothing"

    @property
    def logits_by_component(self) -> bool:
        """Whether every component has logits of its own."""
        return self.mixes in ("logits", "probabilities")


_SCALE = ("context_scale", "learn_context_scale")
_MIXTURE = (*_SCALE, "skip_below", "prior_penalty", "prior_penalty_of")
_DASHED, _DOTTED = (0, (5, 2)), (0, (1, 1.5))

HEADS: dict[str, HeadRow] = {
    "softmax": HeadRow(
        "nothing",
        "softmax",
        {"color": "#0072B2", "marker": "o", "markersize": 11, "fillstyle": "none", "linewidth": 2.5},
        linear=True,
    ),
    "sigsoftmax": HeadRow(
        "nothing",
        "sigsoftmax",
        {"color": "#E69F00", "marker": "^", "markersize": 6, "linestyle": _DASHED},
        link="sigsoftmax",
        fields=("learn_shift",),
    ),
    "sigmoid": HeadRow(
        "nothing", "sigmoid", {"color": "#F0E442", "marker": "v", "markersize": 6}, link="sigmoid"
    ),
    "relu": HeadRow("nothing", "relu", {"color": "#000000", "marker": "x", "markersize": 6}, link="relu"),
    "moc": HeadRow(
        "contexts",
        "MoC",
        {"color": "#56B4E9", "marker": "s", "markersize": 5, "linestyle": _DOTTED},
        linear=True,
        fields=_SCALE,
    ),
    "mos": HeadRow(
        "probabilities",
        "MoS",
        {"color": "#D55E00", "marker": "D", "markersize": 7, "fillstyle": "none", "linewidth": 2.5},
        fields=_MIXTURE,
    ),
    "moss": HeadRow(
        "probabilities",
        "MoSS",
        {"color": "#009E73", "marker": "*", "markersize": 7, "linestyle": _DASHED},
        link="sigsoftmax",
        prior_link="sigsoftmax",
        fields=(*_MIXTURE, "learn_shift"),
    ),
    "mixtape": HeadRow(
        "logits",
        "Mixtape",
        {"color": "#CC79A7", "marker": "P", "markersize": 7},
        fields=(*_SCALE, "gate_size", "gated_words"),
    ),
    "plif": HeadRow(
        "nothing",
        "plif",
        {"color": "#999933", "marker": "X", "markersize": 6},
        fields=("intervals", "interval_range"),
    ),
    "doc": HeadRow(
        "probabilities",
        "DOC",
        {"color": "#882255", "marker": "p", "markersize": 6, "linestyle": _DASHED},
        fields=(*_MIXTURE, "lower_components", "shared_latent_mask"),
    ),
}


def kinds_with(field: str) -> tuple[str, ...]:
    """The kinds that have a key of ``HeadConfig``."""
    return tuple(kind for kind, row in HEADS.items() if field in row.fields)
