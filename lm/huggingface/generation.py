"""Our models and their states behind the interfaces of transformers' generation."""

from typing import Any, Generic, TypeVar

from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel

from lm.trunks.trunk import RowState

IGNORED = -100  # label of a position that is not scored, as in torch's cross entropy


StateT = TypeVar("StateT", bound=RowState)


def require_left_padding(mask: Tensor | None) -> None:
    """Raise ValueError if an attention mask (B, T) has padding after text."""
    if mask is not None and bool((mask.long().diff(dim=1) < 0).any()):
        raise ValueError(
            "attention_mask: has padding after text, which would be read; pad on the left, with"
            ' tokenizer.padding_side = "left"'
        )


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


class ExportedModel(PreTrainedModel, GenerationMixin):
    """A model of ours, ``model``, with an ``embedding`` and a ``head`` that may share its weights.

    Its state is a :class:`StateCache`.
    """

    base_model_prefix = "model"
    main_input_name = "input_ids"
    _is_stateful = True
    _tied_weights_keys = {"model.head.weight": "model.embedding.weight"}  # noqa: RUF012 (as transformers has it)
    model: Any

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def get_input_embeddings(self) -> nn.Embedding:
        """The embedding of the words."""
        embedding: nn.Embedding = self.model.embedding
        return embedding


def tuples(value: Any) -> Any:
    """Convert the arrays of JSON to tuples, the type of our fields."""
    if isinstance(value, dict):
        return {key: tuples(inner) for key, inner in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value
