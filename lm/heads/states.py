"""The hidden states that a head reads."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Layers(NamedTuple):
    """Hidden states of a model, from the last layer down."""

    last: Tensor  # (..., H)
    lower: tuple[Tensor, ...] = ()  # (..., its size) of each layer below, the highest first

    def map(self, function: Callable[[Tensor], Tensor]) -> "Layers":
        """The layers after ``function`` of each."""
        return Layers(function(self.last), tuple(map(function, self.lower)))

    @staticmethod
    def of(states: "States") -> "Layers":
        """The layers; a tensor is the last one of a model that hands over no others."""
        return Layers(states) if isinstance(states, Tensor) else states


States = Tensor | Layers
