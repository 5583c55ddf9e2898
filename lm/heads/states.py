"""Hidden states that a head reads."""

from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple

from torch import Tensor

from lm.heads.cpr import SourceWords


class Layers(NamedTuple):
    """Hidden states of a model, from the last layer down."""

    last: Tensor  # (..., H)
    lower: tuple[Tensor, ...] = ()  # (..., size of the layer) of each layer below, the highest first
    source: SourceWords | None = None  # words that are answered, for heads that read them

    def rows(self, part: slice | Tensor) -> "Layers":
        """A part of the states (N, ...), with the source of each. Indices may repeat."""
        source = None if self.source is None else self.source.select(part)
        return self.map(itemgetter(part))._replace(source=source)

    def double(self) -> "Layers":
        """The states in float64. The source stays, since heads convert it."""
        return self.map(Tensor.double)._replace(source=self.source)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Layers":
        """Apply ``function``, which may change shapes, to each layer. The result has no source."""
        return Layers(function(self.last), tuple(map(function, self.lower)))

    def down_to(self, count: int) -> "Layers":
        """The first ``count`` layers below the last, and no others. Raises ValueError if there are fewer."""
        if len(self.lower) < count:
            raise ValueError(
                f"states of {count} layers below the last are needed, but {len(self.lower)} given"
            )
        return self._replace(lower=self.lower[:count])

    @staticmethod
    def of(states: "States") -> "Layers":
        """The states as layers; a plain tensor becomes the last layer."""
        return Layers(states) if isinstance(states, Tensor) else states


States = Tensor | Layers
