"""Hidden states that a head reads."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Layers(NamedTuple):
    """Hidden states of a model, from the last layer down."""

    last: Tensor  # (..., H)
    lower: tuple[Tensor, ...] = ()  # (..., size of the layer) of each layer below, the highest first

    def map(self, function: Callable[[Tensor], Tensor]) -> "Layers":
        """Apply ``function`` to each layer."""
        return Layers(function(self.last), tuple(map(function, self.lower)))

    @staticmethod
    def of(states: "States") -> "Layers":
        """The states as layers; a plain tensor becomes the last layer."""
        return Layers(states) if isinstance(states, Tensor) else states


States = Tensor | Layers
