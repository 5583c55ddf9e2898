"""Numbers as people read them: one format for each kind, chosen by the name of what is measured."""

import math
import re

from lm.errors import visible

NOTHING = "–"
_FORMATS = {
    r"ppl|perplexity": "{:,.2f}",
    r"minutes|length": "{:,.1f}",
    r"share|rate|most common": "{:.1%}",
    r"^p$": "{:.4f}",
    r"bleu|distinct|precision|recall": "{:.3f}",
    r"nll|nats|kl": "{:,.4f}",
}
_KINDS = [(re.compile(rf"\b(?:{words})\b"), form) for words, form in _FORMATS.items()]
_LARGE = 1000  # from here on decimals say nothing


def number(name: str, value: float) -> str:
    """A number by the name of what it measures, as in ``perplexity``, ``oov_rate`` or ``nats a token``.

    Whole numbers have thousands separators. A number of no known kind has four digits.
    """
    if not math.isfinite(value):
        return NOTHING if math.isnan(value) else "∞" if value > 0 else "-∞"
    if isinstance(value, int):
        return f"{value:,}"
    words = re.sub(r"[_\-]", " ", name.lower())
    form = next((form for kind, form in _KINDS if kind.search(words)), None)
    if abs(value) >= _LARGE:
        return f"{value:,.0f}"
    return form.format(value) if form else f"{value:.4g}"


def shown(name: str, value: object) -> str:
    """What a cell of a table shows: a number as :func:`number` writes it, a dash for nothing, or text."""
    if value is None:
        return NOTHING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return visible(value)
    return number(name, value)
