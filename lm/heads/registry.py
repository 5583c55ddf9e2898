"""Registry of the kinds of output heads, free of torch: schema, figures and analyses read its rows.

Line colours are from the palette of Okabe and Ito, which colour-blind people can distinguish. Heads with
coinciding points have hollow markers of different sizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Mixes = Literal["nothing", "contexts", "logits", "probabilities"]


@dataclass(frozen=True)
class HeadRow:
    """One kind of head.

    ``fields`` are the keys of ``HeadConfig`` that not every kind has. The logits of a ``linear`` kind are
    one product of rank E. A kind that ``begins_as_softmax`` has parameters with which it equals any softmax.
    ``line_style`` has matplotlib's properties of its line in figures.
    """

    mixes: Mixes
    label: str
    line_style: Mapping[str, Any]
    link: str = "exp"  # of LINKS in lm/heads/links.py
    prior_link: str = "exp"
    linear: bool = False
    begins_as_softmax: bool = True
    fields: tuple[str, ...] = ()

    @property
    def is_mixture(self) -> bool:
        """True if the head has components."""
        return self.mixes != "nothing"

    @property
    def logits_by_component(self) -> bool:
        """True if every component has its own logits."""
        return self.mixes in ("logits", "probabilities")


_CONTEXT = ("context_activation", "context_scale", "learn_context_scale")
_PRIOR = (*_CONTEXT, "prior_bias")
_PENALISED = (*_PRIOR, "prior_penalty", "prior_penalty_of")
_MIXTURE = (*_PENALISED, "skip_below")
_HOLLOW: dict[str, Any] = {"fillstyle": "none", "linewidth": 2.5}
_DASHED: dict[str, Any] = {"linestyle": (0, (5, 2))}
_DOTTED: dict[str, Any] = {"linestyle": (0, (1, 1.5))}


def _line(color: str, marker: str, size: int) -> dict[str, Any]:
    return {"color": color, "marker": marker, "markersize": size}


HEADS: dict[str, HeadRow] = {
    "softmax": HeadRow("nothing", "softmax", _line("#0072B2", "o", 11) | _HOLLOW, linear=True),
    "sigsoftmax": HeadRow(
        "nothing", "sigsoftmax", _line("#E69F00", "^", 6) | _DASHED, "sigsoftmax", fields=("learn_shift",)
    ),
    "sigmoid": HeadRow("nothing", "sigmoid", _line("#F0E442", "v", 6), "sigmoid", begins_as_softmax=False),
    "relu": HeadRow("nothing", "relu", _line("#000000", "x", 6), "relu", begins_as_softmax=False),
    "moc": HeadRow("contexts", "MoC", _line("#56B4E9", "s", 5) | _DOTTED, linear=True, fields=_PRIOR),
    "mos": HeadRow("probabilities", "MoS", _line("#D55E00", "D", 7) | _HOLLOW, fields=_MIXTURE),
    "moss": HeadRow(
        "probabilities",
        "MoSS",
        _line("#009E73", "*", 7) | _DASHED,
        link="sigsoftmax",
        prior_link="sigsoftmax",
        fields=(*_MIXTURE, "learn_shift"),
    ),
    "mixtape": HeadRow(
        "logits", "Mixtape", _line("#CC79A7", "P", 7), fields=(*_CONTEXT, "gate_size", "gated_words")
    ),
    "plif": HeadRow("nothing", "plif", _line("#999933", "X", 6), fields=("intervals", "interval_range")),
    "doc": HeadRow(
        "probabilities",
        "DOC",
        _line("#882255", "p", 6) | _DASHED,
        fields=(*_MIXTURE, "lower_components", "shared_latent_mask"),
    ),
    "mfs": HeadRow(
        "probabilities",
        "MFS",
        _line("#44AA99", "h", 7) | _DOTTED,
        fields=(*_PENALISED, "partitions", "facet_layers"),
    ),
    "cpr": HeadRow(
        "probabilities",
        "CPR",
        _line("#661100", "d", 6) | _DASHED,
        fields=(*_PENALISED, "candidates", "source", "facet_layers"),
    ),
}


def head_label(kind: str, components: int) -> str:
    """Label of a head, with its number K of components if it is a mixture."""
    row = HEADS[kind]
    return f"{row.label}, K = {components}" if row.is_mixture else row.label


def kinds_with(field: str) -> tuple[str, ...]:
    """Kinds of head that have a key of ``HeadConfig``."""
    return tuple(kind for kind, row in HEADS.items() if field in row.fields)
