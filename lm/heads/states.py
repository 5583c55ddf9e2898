"""Hidden states that a head reads."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from lm.heads.partitions import SourceWords


class Layers(NamedTuple):
    """Hidden states of a model, from the last layer down."""

    last: Tensor  # (..., H)
    lower: tuple[Tensor, ...] = ()  # (..., size of the layer) of each layer below, the highest first
    source: SourceWords | None = None  # words that are answered, for heads that read them

    def map(self, function: Callable[[Tensor], Tensor]) -> "Layers":
        """Apply ``function`` to each layer. The result has no source, whose rows may not fit."""
        return Layers(function(self.last), tuple(map(function, self.lower)))

    @staticmethod
    def of(states: "States") -> "Layers":
        """The states as layers; a plain tensor becomes the last layer."""
        return Layers(states) if isinstance(states, Tensor) else states


States = Tensor | Layers
