"""Our states in the place of transformers' caches of keys and values."""

from typing import Generic, Protocol, Self, TypeVar

from torch import Tensor

IGNORED = -100  # label of a position that is not scored, as in torch's cross entropy


class RowState(Protocol):
    """A state with a row for every sequence or hypothesis."""

    def select(self, rows: Tensor) -> Self:
        """State whose row i is row ``rows[i]`` of the present one."""
        ...


StateT = TypeVar("StateT", bound=RowState)


class StateCache(Generic[StateT]):
    """A state between tokens, which the generation of transformers carries and reorders.

    Its beam search asks only for the number of tokens seen, and for the rows of the hypotheses that go on.
    """

    is_compileable = False

    def __init__(self, state: StateT, tokens: int = 0) -> None:
        self.state, self.tokens = state, tokens

    def get_seq_length(self) -> int:
        """Number of tokens that the state has seen."""
        return self.tokens

    def reorder_cache(self, rows: Tensor) -> None:
        """Row i becomes row ``rows[i]``."""
        self.state = self.state.select(rows)
