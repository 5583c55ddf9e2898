"""Vectors of hashed bigrams, which are added to the embedding of words.

Each word and the word before it have a row of a table by a hash, so that some bigrams share a row. The state
of a stream carries its last word from window to window.

T time · B streams · E size of the word vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from lm.trunks.trunk import TrunkState

_NONE = -1  # id of the word before a text
_FACTOR, _BITS = 0x45D9F3B, 32  # odd, so that no bits are lost; products stay below 2^63
_LAST = "last_words"  # name of the last words among the tensors of a state


@dataclass(frozen=True)
class BigramState(TrunkState):
    """A trunk's state and the last word of each stream, (B,) int64."""

    trunk: TrunkState
    last: Tensor

    @classmethod
    def initial(cls, trunk: TrunkState, device: torch.device) -> Self:
        """State before a text."""
        return cls(trunk, torch.full((trunk.streams,), _NONE, device=device))

    @classmethod
    def of(cls, trunk: TrunkState, tensors: dict[str, Tensor], device: torch.device) -> Self:
        """State from a trunk's state and the result of :meth:`tensors`."""
        return cls(trunk, tensors[_LAST].to(device))

    @property
    def streams(self) -> int:
        return len(self.last)

    def select(self, rows: Tensor | slice) -> Self:
        return type(self)(self.trunk.select(rows), self.last[rows])

    def replaced(self, rows: slice, new: Self) -> Self:
        last = self.last.clone()
        last[rows] = new.last
        return type(self)(self.trunk.replaced(rows, new.trunk), last)

    def joined(self, others: Sequence[Self]) -> Self:
        last = torch.cat([state.last for state in (self, *others)])
        return type(self)(self.trunk.joined([other.trunk for other in others]), last)

    def forgetting(self, kept: Tensor) -> Self:
        last = self.last.where(kept.to(self.last.device), _NONE)
        return type(self)(self.trunk.forgetting(kept), last)

    def detached(self) -> Self:
        return type(self)(self.trunk.detached(), self.last)

    def tensors(self) -> dict[str, Tensor]:
        return self.trunk.tensors() | {_LAST: self.last}


class HashedBigrams(nn.Embedding):
    """A table of vectors for hashed bigrams, zero at the start."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(  # type: ignore[override]
        self, tokens: Tensor, last: Tensor, keep: Tensor | None = None
    ) -> Tensor:
        """Vectors (T, B, E) of tokens (T, B) after the last words (B,) of the streams.

        ``keep`` (T, B) bool is false at tokens that know no word before them.
        """
        before = torch.cat((last[None], tokens[:-1]))
        if keep is not None:
            before = before.where(keep, _NONE)
        return super().forward(mixed(mixed(before - _NONE) ^ tokens) % self.num_embeddings)


def mixed(numbers: Tensor) -> Tensor:
    """A permutation of the int64 numbers below 2^32, in which every bit depends on every other.

    A remainder by a power of two keeps only the lowest bits. So these must depend on all bits of both words.
    """
    for _ in range(2):
        numbers = (numbers ^ numbers >> _BITS // 2) * _FACTOR & (1 << _BITS) - 1
    return numbers ^ numbers >> _BITS // 2
