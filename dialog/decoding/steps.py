"""Interface between a decoder and the algorithms of decoding, and their results.

A step function maps the last token and the state of each of R rows to normalised log-probabilities (R, V) and
the next state. ``state.select(rows)`` reorders, repeats or drops rows. Decoding needs no more of a model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from torch import Tensor

from lm.trunks.trunk import RowState

StateT = TypeVar("StateT", bound=RowState)
StepFunction = Callable[[Tensor, StateT], tuple[Tensor, StateT]]


class Marks(NamedTuple):
    """Special ids: start and end of every response, and ids forbidden in responses."""

    bos: int
    eos: int
    forbidden: Sequence[int] = ()


class Texts(NamedTuple):
    """Texts of the rules on responses, in token ids; ``contexts`` has the utterances of every source."""

    begin: Sequence[int] = ()
    require: Sequence[Sequence[int]] = ()
    forbid: Sequence[Sequence[int]] = ()
    contexts: Sequence[Sequence[Sequence[int]]] = ()


NO_TEXTS = Texts()


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A decoded response: ``tokens`` without <s> and </s>, ``log_prob`` in nats, with </s> if finished.

    ``score`` is ``log_prob / length ** length_penalty``. The length counts the </s> of a finished response.
    After a selection, it is the selection's.
    """

    tokens: tuple[int, ...]
    log_prob: float
    score: float
    finished: bool

    @property
    def order(self) -> tuple[bool, float]:
        """Sort key of lists, the best first: finished responses before others, then the highest score."""
        return not self.finished, -self.score
