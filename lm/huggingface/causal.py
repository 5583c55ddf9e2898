"""A head of ours under the network of somebody's causal language model.

B sequences · T tokens · H hidden size · V words.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from lm.errors import ConfigError, require
from lm.heads.config import HeadConfig
from lm.heads.head import Head
from lm.heads.start import start_as
from lm.huggingface.generation import mean_loss

# keys of the training objective beyond the loss of the labels
OBJECTIVE = ("temperature_loss_scaling", "prior_penalty", "label_smoothing", "unlikelihood", "past_decode")
_TRIED = 4  # tokens whose logits the output layer has to explain
_CLOSE = 1e-3  # largest difference of log-probabilities by another order of sums


class HighrankForCausalLM(nn.Module):
    """The network below the output layer of a causal language model, and a head.

    It takes and returns what ``transformers.Trainer`` needs. ``state_dict`` has the network under ``trunk``
    and the head under ``head``.

    Args:
        model: a causal language model of transformers. Its network is used, not copied.
        head: kind and sizes of the head, which gets an output matrix of its own.
        start: ``pretrained``: the head begins as the model's output layer, see :mod:`lm.heads.start`.
            ``random``: it begins untrained.

    Raises:
        ConfigError: a tied head, a head with one of :data:`OBJECTIVE`, an encoder-decoder, a model without an
            output layer or, for ``pretrained``, with other logits than those of its output layer, or a head
            that cannot begin so.
    """

    accepts_loss_kwargs = True  # the trainer gives ``num_items_in_batch``,
    loss_type = "ForCausalLM"  # and counts no first labels, which nothing predicts

    def __init__(
        self, model: PreTrainedModel, head: HeadConfig, start: Literal["pretrained", "random"] = "pretrained"
    ) -> None:
        super().__init__()
        layer = model.get_output_embeddings()
        if model.config.is_encoder_decoder:
            raise ConfigError(f"{type(model).__name__}: an encoder-decoder; give a causal language model")
        if not isinstance(layer, nn.Linear) or model.base_model is model:
            raise ConfigError(f"{type(model).__name__}: has no output layer; give a causal language model")
        self.config = model.config
        self.trunk: Any = model.base_model  # called as its own class, whose arguments differ between kinds
        words, size = layer.weight.shape
        for key in OBJECTIVE:
            unset = getattr(head, key) == HeadConfig.model_fields[key].default
            require(unset, f"head.{key}: the loss of this class is that of the labels alone; leave it out")
        if head.tied:
            raise ConfigError("head.tied: the trainer saves no shared weights; set head.tied = false")
        self.head = Head(head, size, words)
        if start == "pretrained":
            require_linear(model, layer)
            start_as(self.head, layer.weight.float(), None if layer.bias is None else layer.bias.float())

    def activation_checkpointing_enable(
        self,
        activation_checkpointing_kwargs: dict[str, Any] | None = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        """Recompute the network's activations in the backward pass to save memory, as the trainer asks."""
        self.trunk.activation_checkpointing_enable(activation_checkpointing_kwargs, every_n_layers, offload)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> CausalLMOutput:
        """Read tokens (B, T).

        ``labels`` (B, T) are the ids that each position should have. They are shifted here, and −100 is not
        scored. With them, the output has the mean loss in nats and no logits. Without them, it has
        log-probabilities (B, T, V) as logits. ``num_items_in_batch`` divides the loss instead of the number
        of scored labels, see :func:`lm.huggingface.generation.mean_over`.
        """
        hidden = self.trunk(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)[0]
        hidden = hidden.to(self.head.weight.dtype)  # transformers opens a model in the precision of its file
        if labels is None:
            return CausalLMOutput(logits=self.head.log_probs(hidden))
        before = hidden[:, :-1].transpose(0, 1)  # (T, B, H), so that a stream has one mask of latent dropout
        return CausalLMOutput(loss=mean_loss(self.head, before, labels, attention_mask, num_items_in_batch))


@torch.no_grad()
def require_linear(model: PreTrainedModel, layer: nn.Linear) -> None:
    """Raise ConfigError if a model scales or caps its logits, so that no head could begin as it."""
    network: Any = model
    base: Any = model.base_model
    training = model.training
    model.eval()
    tokens = torch.arange(_TRIED, device=layer.weight.device)[None] % len(layer.weight)
    logits, found = network(input_ids=tokens).logits, layer(base(input_ids=tokens, use_cache=False)[0])
    model.train(training)
    require_logits(model, found, logits)


def require_logits(model: PreTrainedModel, found: Tensor, expected: Tensor) -> None:
    """Raise ConfigError unless the logits ``found`` have the distribution of those of a model."""
    if not torch.allclose(found.float().log_softmax(-1), expected.float().log_softmax(-1), atol=_CLOSE):
        raise ConfigError(
            f"{type(model).__name__}: changes logits after its output layer; a head cannot begin so: set"
            ' start = "random", in a config head.start = "random"'
        )
