"""Our models and their states behind the interfaces of transformers' generation."""

from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from lm.heads.head import Head
from lm.heads.states import Layers, States
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


class ExportedConfig(PreTrainedConfig):
    """Config of an exported model.

    ``settings`` is the run's own config with resolved sizes, and ``trunk`` the config of a pretrained trunk.
    """

    settings: dict[str, Any] | None = None
    trunk: dict[str, Any] | None = None
    vocab_size: int = 1
    hidden_size: int = 1
    num_hidden_layers: int = 1
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = False


class ExportedModel(PreTrainedModel, GenerationMixin):
    """A model of ours, ``model``, with an ``embedding`` and a ``head`` that may share its weights.

    Its state is a :class:`StateCache`.
    """

    base_model_prefix = "model"
    main_input_name = "input_ids"
    _is_stateful = True
    _tied_weights_keys = {"model.head.weight": "model.embedding.weight"}  # noqa: RUF012 (as transformers has it)
    accepts_loss_kwargs = True  # its trainer gives ``num_items_in_batch``
    model: Any

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def get_input_embeddings(self) -> nn.Embedding:
        """The embedding of the words."""
        embedding: nn.Embedding = self.model.embedding
        return embedding

    def causal_output(
        self,
        hidden: Layers,
        labels: Tensor | None,
        mask: Tensor | None,
        cache: Any,
        logits_to_keep: int,
        num_items_in_batch: Tensor | int | None,
    ) -> CausalLMOutputWithPast:
        """The mean loss of labels (B, T), or log-probabilities at the last positions of states (T, B, ·).

        ``mask`` (B, at least T) is zero at padding, and ``num_items_in_batch`` is that of :func:`mean_over`.
        """
        head = self.model.head
        if labels is None:
            log_probs = head.log_probs(hidden.map(lambda states: states[-logits_to_keep:]))
            return CausalLMOutputWithPast(logits=log_probs.transpose(0, 1), past_key_values=cache)
        before = self.for_head(hidden.map(lambda states: states[:-1]))
        loss = mean_loss(head, before, labels, mask, num_items_in_batch)
        return CausalLMOutputWithPast(loss=loss, past_key_values=cache)

    def for_head(self, hidden: Layers) -> Layers:
        """Hidden states (T, B, ·) in the shape for the head's own dropout."""
        return hidden


def mean_loss(
    head: Head,
    before: States,
    labels: Tensor,
    mask: Tensor | None,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:
    """Mean loss of the labels (B, T) after the first that are scored, from the states before them.

    The first token after padding, where ``mask`` is zero, is not scored, as it is not where it is alone.
    See :func:`mean_over` for ``num_items_in_batch``.
    """
    targets = labels[:, 1:].T
    scored = targets != IGNORED
    if mask is not None:
        scored &= mask[:, -labels.shape[1] : -1].T.bool()
    return mean_over(head.loss(before, targets.clamp(min=0), scored), scored.sum(), num_items_in_batch)


def mean_over(loss: Tensor, scored: Tensor | int, num_items_in_batch: Tensor | int | None) -> Tensor:
    """A summed loss divided by the number of ``scored`` labels; 0 where none is.

    ``num_items_in_batch`` replaces the number. The trainer of transformers gives it, so that batches whose
    gradients it accumulates have the gradient of one large batch.
    """
    items = scored if num_items_in_batch is None else num_items_in_batch
    return loss / torch.as_tensor(items, device=loss.device).clamp(min=1)


def tuples(value: Any) -> Any:
    """Convert the arrays of JSON to tuples, the type of our fields."""
    if isinstance(value, dict):
        return {key: tuples(inner) for key, inner in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value
