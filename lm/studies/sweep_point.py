"""One model of a study of heads: a head over a table of free states.

E context size · K components · H hidden size of a state · C contexts · V words.
"""

from dataclasses import dataclass

from pydantic import ValidationError
from torch import Tensor

from lm.engine.shapes import shapes_only
from lm.heads.config import HeadConfig
from lm.heads.head import Head
from lm.heads.states import Layers

INTERVALS = 100  # of plif
PARTS = 4  # of the vocabulary, for mfs
LIKELY_WORDS = (2, 10)  # candidates of cpr


@dataclass(frozen=True)
class SweepPoint:
    """Settings of one model, without those of language and training."""

    kind: str
    components: int
    embedding_size: int
    hidden_size: int
    context_scale: float = 1.0

    def parameters(self, contexts: int, vocab: int) -> int:
        """Number of parameters of the table of contexts and the head."""
        with shapes_only():
            head = self.head(vocab)
        return contexts * self.width + sum(parameter.numel() for parameter in head.parameters())

    @property
    def width(self) -> int:
        """Free numbers per context: H, or 2 H for doc, which reads two layers."""
        return self.hidden_size * (2 if self.kind == "doc" else 1)

    @property
    def config(self) -> HeadConfig:
        """Config of the head. Half of the components of doc come from its lower layer."""
        return HeadConfig(
            kind=self.kind,
            components=self.components,
            embedding_size=self.embedding_size,
            context_scale=self.context_scale,
            intervals=INTERVALS if self.kind == "plif" else HeadConfig.model_fields["intervals"].default,
            lower_components=(self.components // 2,) if self.kind == "doc" else (),
            partitions=PARTS if self.kind == "mfs" else 1,
            candidates=LIKELY_WORDS if self.kind == "cpr" else (),
        )

    def head(self, vocab: int) -> Head:
        """Build the head."""
        return Head(self.config, self.hidden_size, vocab, lower_sizes=(self.hidden_size,))

    def layers(self, states: Tensor) -> Layers:
        """States (C, ``width``) as layers of the hidden size."""
        last, *lower = states.split(self.hidden_size, 1)
        return Layers(last, tuple(lower))


def possible(kind: str, components: int) -> bool:
    """True if a kind of head allows the number of components."""
    try:
        return bool(SweepPoint(kind, components, 1, 1).config)
    except ValidationError:
        return False
