"""The interface of a trunk: word vectors and a carried state in, hidden states and the next state out.

A trunk reads a stream window by window. Its state carries what earlier windows leave for later ones. So the
lengths of windows do not change the result.

T time · B streams · E size of the word vectors · H size of the hidden states.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn


class RowState(Protocol):
    """A state between tokens, with a row for every sequence or hypothesis."""

    def select(self, rows: Tensor) -> Self:
        """State whose row i is row ``rows[i]`` of the present one. Rows may repeat or be dropped."""


class TrunkState(ABC):
    """State of B streams between windows. It is never modified in place."""

    @property
    @abstractmethod
    def streams(self) -> int:
        """B."""

    @abstractmethod
    def select(self, rows: Tensor | slice) -> Self:
        """State of some streams. Rows given as a tensor (N,) may repeat."""

    @abstractmethod
    def replaced(self, rows: slice, new: Self) -> Self:
        """State with the streams ``rows`` from ``new``."""

    @abstractmethod
    def joined(self, others: Sequence[Self]) -> Self:
        """State of these streams and, after them, of those of other states."""

    @abstractmethod
    def forgetting(self, kept: Tensor) -> Self:
        """State with the initial state for each stream that is false in ``kept`` (B,) bool."""

    @abstractmethod
    def detached(self) -> Self:
        """State without gradients."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Tensors by name for checkpoints and exchanges, the streams first, with names and shapes that do
        not depend on the text."""


StateT = TypeVar("StateT", bound=TrunkState)


class TrunkOutputs(NamedTuple, Generic[StateT]):
    """Outputs of a trunk for a window."""

    outputs: Tensor  # (T, B, H) of the last layer or of the sum
    lower: tuple[Tensor, ...]  # (T, B, size) input of each layer, the highest first
    state: StateT  # after the window


class Trunk(nn.Module, ABC, Generic[StateT]):
    """A network that reads streams of word vectors.

    Attributes:
        size: H.
        lower_sizes: sizes of the inputs of the layers, the highest first.
    """

    size: int
    lower_sizes: tuple[int, ...]

    @property
    def state_bound(self) -> float:
        """Bound of the absolute hidden states, without dropout and from the initial state.

        It is infinite where none is known.
        """
        return math.inf

    @abstractmethod
    def initial_state(self, streams: int) -> StateT:
        """State before the first token."""

    @abstractmethod
    def state_from(self, tensors: dict[str, Tensor], device: torch.device) -> StateT:
        """State from the result of :meth:`TrunkState.tensors`."""

    @abstractmethod
    def forward(self, words: Tensor, state: StateT, keep: Tensor | None = None) -> TrunkOutputs[StateT]:
        """Read a window of word vectors (T, B, E) from a state.

        ``keep`` (T, B) bool is false at tokens before which a stream forgets all that it has read.
        """

    @abstractmethod
    def dropout_rates(self) -> tuple[float, ...]:
        """All dropout rates within the trunk."""

    @abstractmethod
    def scale_dropout(self, factor: float) -> None:
        """Multiply all dropout rates by a factor. Each product is below 1."""

    @abstractmethod
    def activations(self, steps: int, streams: int, device: torch.device) -> int:
        """Approximate number of numbers kept for backpropagation through a window, cached and temporary.

        ``device`` is that of the training. It may decide what is kept.
        """


def trains(part: nn.Module) -> bool:
    """True if a part has parameters that training changes."""
    return any(parameter.requires_grad for parameter in part.parameters())


AnyTrunk = Trunk[Any]
