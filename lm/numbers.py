"""Number formats for display, chosen by the name of the measure."""

import math
import re

from lm.errors import visible

NOTHING = "–"
_FORMATS = {
    r"ppl|perplexity": "{:z,.2f}",
    r"length ratio": "{:z.3f}",
    r"minutes|length": "{:z,.1f}",
    r"share|rate|most common": "{:z.1%}",
    r"^p$": "{:.4f}",
    r"bleu|distinct|precision|recall": "{:z.3f}",
    r"nll|nats|kl": "{:z,.4f}",
    r"τ": "{:z.6f}",
    r"mb": "{:z,.1f}",
}
_KINDS = [(re.compile(rf"\b(?:{words})\b"), form) for words, form in _FORMATS.items()]
_LEAST_P = 0.0001  # smaller p-values are shown as below it
_LARGE = 1000  # from here on, no decimals
_HUGE = 1e12  # from here on, three digits and an exponent


def number(name: str, value: float) -> str:
    """Format a number by the name of its measure, such as ``perplexity``, ``oov_rate`` or ``nats a token``.

    Whole numbers have thousands separators. A number of unknown kind has four digits.
    """
    if not math.isfinite(value):
        return NOTHING if math.isnan(value) else "∞" if value > 0 else "-∞"
    if isinstance(value, int):
        return f"{value:,}"
    words = re.sub(r"[_\-]", " ", name.lower())
    if words == "p" and 0 < value < _LEAST_P:
        return f"<{_LEAST_P:g}"
    form = next((form for kind, form in _KINDS if kind.search(words)), None)
    if abs(value) >= _HUGE:
        return f"{value:.3g}"
    if abs(value) >= _LARGE:
        return f"{value:,.0f}"
    return form.format(value) if form else f"{value:.4g}"


def shortest(value: float) -> str:
    """A number in at most six digits if these give it exactly, else in all of its digits."""
    brief = f"{value:g}"
    return brief if float(brief) == value else repr(value)


def shown(name: str, value: object) -> str:
    """The text of a table cell: a number formatted by :func:`number`, a dash for nothing, or text."""
    if value is None:
        return NOTHING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return visible(value)
    return number(name, value)
