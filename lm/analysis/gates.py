"""Statistics of the gates of recurrent layers over a text: means, deviations, saturation.

Melis et al. (2020, §4.4) find that the gates of a Mogrifier have the same means as those of an LSTM and a
smaller variance. So saturated gates do not explain its advantage.

T time · G gates · H hidden size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lm.cells.layers import Layer
from lm.console.tables import Table
from lm.errors import DataError, require
from lm.language.config import LmConfig
from lm.language.model import LanguageModel
from lm.language.trained import TrainedLm
from lm.language.windows import Ids
from lm.trunks.names import trunk_kind

SATURATED = 0.1  # share of its range within which a gate is saturated, at either end
_LOWEST = (0.0, 0.0, -1.0, 0.0)  # lower bounds of gates; the third is the candidate in LSTM and GRU
_NAMES = {4: ("input", "forget", "candidate", "output"), 3: ("reset", "update", "candidate")}


@dataclass(frozen=True)
class GateRow:
    """Mean and standard deviation of a gate over units and tokens.

    ``low`` and ``high`` are the shares of values within a tenth of the range from its ends. The range is
    (0, 1) for gates and (-1, 1) for candidates, which are outputs of tanh.
    """

    layer: int
    gate: str
    mean: float
    deviation: float
    low: float
    high: float


@dataclass(frozen=True)
class GateStatistics:
    """Statistics of every gate of every layer over a text."""

    tokens: int
    gates: Sequence[GateRow]


def gate_statistics(trained: TrainedLm, ids: Ids) -> GateStatistics:
    """Measure the gates of a run on a text.

    ConfigError as :func:`require_gates`, DataError without a token.
    """
    require_gates(trained.config)
    sums: dict[int, Tensor] = {}
    with _watched(trained.model, sums):
        tokens = sum(len(targets) for _, targets in trained.readings(ids))
    if not sums:
        raise DataError("the text has no tokens to analyse gates on; name a longer text")
    rows = [row for layer, found in sorted(sums.items()) for row in _rows(layer, found)]
    return GateStatistics(tokens, rows)


def require_gates(config: LmConfig) -> None:
    """Raise ConfigError for a trunk without recurrent layers."""
    gated = trunk_kind(config.model.trunk) == "recurrent"
    require(gated, "its trunk has no recurrent layers, and so no gates; name other runs")


def _gated(model: LanguageModel) -> list[Layer]:
    """The recurrent layers, from first to last."""
    return [layer for layer in model.modules() if isinstance(layer, Layer)]


@contextmanager
def _watched(model: LanguageModel, sums: dict[int, Tensor]) -> Iterator[None]:
    """Context manager: add up the gates of every layer in forward passes: (count, Σ, Σ², low, high)."""

    def watch(number: int) -> Callable[..., None]:
        def add(layer: Any, arguments: tuple[Any, ...], _: object) -> None:
            values = layer.gate_values(*arguments).double()  # (T, B, G, H)
            sums[number] = sums.get(number, torch.zeros(())) + _sums(values).cpu()

        return add

    handles = [
        layer.register_forward_hook(watch(number)) for number, layer in enumerate(_gated(model), start=1)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _sums(values: Tensor) -> Tensor:
    """Sums (5, G) of gate values (T, B, G, H)."""
    lowest = values.new_tensor(_LOWEST[: values.shape[2]])[:, None]
    margin = SATURATED * (1 - lowest)
    low, high = values < lowest + margin, values > 1 - margin
    each = (torch.ones_like(values), values, values.square(), low, high)
    return torch.stack([one.double().sum((0, 1, 3)) for one in each])


def _rows(layer: int, sums: Tensor) -> Iterator[GateRow]:
    count, total, squares, low, high = sums
    means = total / count
    deviations = (squares / count - means.square()).clamp(min=0).sqrt()
    columns = torch.stack([means, deviations, low / count, high / count]).T.tolist()
    for gate, numbers in zip(_NAMES[sums.shape[1]], columns, strict=True):
        yield GateRow(layer, gate, *numbers)


def gate_tables(results: Mapping[str, GateStatistics]) -> list[Table | str]:
    """Table per run."""
    tables: list[Table | str] = [
        Table(f"{name}: gates over {found.tokens:,} tokens", [vars(row) for row in found.gates])
        for name, found in results.items()
    ]
    ranges = "0 to 1, of candidates -1 to 1"
    return [
        *tables,
        f"low, high: shares of the values within {SATURATED:.0%} of the range ({ranges}) from its ends",
    ]
