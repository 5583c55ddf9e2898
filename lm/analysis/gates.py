"""What the gates of recurrent layers do over a text: their means, deviations and saturation.

Melis et al. (2020, §4.4) find that the gates of a Mogrifier have the means of those of an LSTM, and a smaller
variance, so that saturated gates are not what helps it.

T time · G gates · H hidden size.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lm.console.tables import Table
from lm.errors import DataError
from lm.stop import Poll, no_poll

if TYPE_CHECKING:
    from lm.language.model import LanguageModel
    from lm.language.trained import TrainedLm
    from lm.language.windows import Ids

SATURATED = 0.1  # how near to an end of its range a gate is saturated
_LOWEST = (0.0, 0.0, -1.0, 0.0)  # what a gate can be; the third is a candidate in LSTM and GRU alike
_NAMES = {4: ("input", "forget", "candidate", "output"), 3: ("reset", "update", "candidate")}


def gate_statistics(trained: "TrainedLm", ids: "Ids", poll: Poll = no_poll) -> dict[str, Any]:
    """Of every gate of every layer, over all units and all tokens of a text.

    Returns:
        ``tokens`` and, as ``gates``, a row for each: ``layer``, ``gate``, ``mean``, ``deviation``, and the
        shares ``low`` and ``high`` of values within a tenth of the range from its ends: (0, 1) of gates,
        (-1, 1) of candidates, which are not gates but squashed by tanh.

    Raises:
        DataError: no token.
    """
    sums: dict[int, Tensor] = {}
    with _watched(trained.model, sums):
        tokens = sum(len(targets) for _, targets in trained.readings(ids, poll=poll))
    if not sums:
        raise DataError("a text without tokens says nothing about gates; name a longer one")
    rows = [row for layer, found in sorted(sums.items()) for row in _rows(layer, found)]
    return {"tokens": tokens, "gates": rows}


@contextmanager
def _watched(model: "LanguageModel", sums: dict[int, Tensor]) -> Iterator[None]:
    """Adds up what every layer's gates are whenever the model reads, (count, Σ, Σ², low, high) by gate."""

    def watch(number: int) -> Callable[..., None]:
        def add(layer: nn.Module, arguments: tuple[Any, ...], _: object) -> None:
            values = layer.gate_values(*arguments).double()  # type: ignore[operator]  # (T, B, G, H)
            sums[number] = sums.get(number, torch.zeros(())) + _sums(values).cpu()

        return add

    handles = [
        layer.register_forward_hook(watch(number)) for number, layer in enumerate(model.layers, start=1)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _sums(values: Tensor) -> Tensor:
    """(5, G) of (T, B, G, H)."""
    lowest = values.new_tensor(_LOWEST[: values.shape[2]])[:, None]
    margin = SATURATED * (1 - lowest)
    low, high = values < lowest + margin, values > 1 - margin
    each = (torch.ones_like(values), values, values.square(), low, high)
    return torch.stack([one.double().sum((0, 1, 3)) for one in each])


def _rows(layer: int, sums: Tensor) -> Iterator[dict[str, Any]]:
    count, total, squares, low, high = sums
    means = total / count
    deviations = (squares / count - means.square()).clamp(min=0).sqrt()
    for place, name in enumerate(_NAMES[sums.shape[1]]):
        yield {
            "layer": layer,
            "gate": name,
            "mean": float(means[place]),
            "deviation": float(deviations[place]),
            "low": float(low[place] / count[place]),
            "high": float(high[place] / count[place]),
        }


def gate_tables(results: Mapping[str, Mapping[str, Any]]) -> list[Table | str]:
    """One for each run."""
    tables: list[Table | str] = [
        Table(f"{name}: gates over {result['tokens']:,} tokens", result["gates"])
        for name, result in results.items()
    ]
    ranges = "0 to 1, of candidates -1 to 1"
    return [
        *tables,
        f"low, high: shares of the values within {SATURATED:.0%} of the range ({ranges}) from its ends",
    ]
