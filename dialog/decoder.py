"""The interface of a decoder: words of a response and the memory of its context → hidden states for the head.

R responses · N tokens, packed · E embedding size · H decoder size.
"""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from dialog.encoders import Memory, Workload
from lm.heads.states import Layers
from lm.trunks.trunk import RowState

DecoderStateT = TypeVar("DecoderStateT", bound=RowState)  # state of decoding between tokens


class Decoder(nn.Module, ABC, Generic[DecoderStateT]):
    """A network whose hidden states go to the head.

    Attributes:
        size: H.
        lower_sizes: sizes of the inputs of its layers, the highest first, for a head that reads lower layers
            too. The head gets the states of the last layer, after dropout, and these inputs below them.
    """

    size: int
    lower_sizes: tuple[int, ...]

    @abstractmethod
    def start(self, memory: Memory) -> DecoderStateT:
        """State before the first token."""

    @abstractmethod
    def forward(self, words: PackedSequence, state: DecoderStateT, rows: Tensor) -> Layers:
        """Hidden states of whole responses, packed (N, ·).

        Args:
            words: embedded inputs, packed (N, E), longest response first.
            state: state before the first token.
            rows: response of each packed token, (N,).
        """

    @abstractmethod
    def step(self, words: Tensor, state: DecoderStateT) -> tuple[Layers, DecoderStateT]:
        """One token: words (R, E) → hidden states (R, ·), and the next state."""

    @abstractmethod
    def activations(self, work: Workload, positions: int) -> int:
        """Approximate number of numbers kept for backpropagation, for memories of M = ``positions``."""


AnyDecoder = Decoder[Any]
