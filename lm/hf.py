"""Language models of this project as models of transformers.

Importing the module registers them. ``AutoModelForCausalLM.from_pretrained`` then opens the folders that
``lm export`` writes.

B sequences · T tokens · V words.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

from lm.heads.states import Layers
from lm.huggingface.architecture import carried_architecture, read_architecture
from lm.huggingface.generation import ExportedConfig, ExportedModel, StateCache, require_left_padding, tuples
from lm.huggingface.pieces import own_id
from lm.huggingface.starting import with_trunk
from lm.language.config import LmConfig
from lm.language.model import LanguageModel, pretrained_trunk
from lm.language.sizes import sized, with_architecture
from lm.runs.inputs import TRUNK
from lm.text.vocabulary import Vocabulary
from lm.trunks.names import pretrained_path
from lm.trunks.trunk import TrunkState


class HighrankLmConfig(ExportedConfig):
    """Config of an exported language model."""

    model_type = "highrank_lm"
    line_end_id: int = 0

    @classmethod
    def of(cls, run: LmConfig, vocabulary: Vocabulary) -> Self:
        """The config of the model of a run."""
        config, path, trunk = sized(run, len(vocabulary)), pretrained_path(run.model.trunk), None
        if path:
            trunk = json.loads(read_architecture(path).content)
            run = with_trunk(run, Path(TRUNK))
        return cls(
            settings=(run if path else config).model_dump(mode="json"),
            trunk=trunk,
            line_end_id=vocabulary.eos,
            vocab_size=len(vocabulary),
            hidden_size=config.model.hidden_sizes[-1],
            num_hidden_layers=len(config.model.hidden_sizes),
            bos_token_id=vocabulary.bos,
            eos_token_id=_end_of_text(trunk or {}, vocabulary),
            pad_token_id=vocabulary.bos,
            tie_word_embeddings=config.head.tied,
        )

    def lm_config(self) -> LmConfig:
        """The run's own config."""
        return LmConfig.model_validate(tuples(self.settings or {}))


def _end_of_text(trunk: Mapping[str, Any], vocabulary: Vocabulary) -> int:
    """Id of the token that ends a generated text: that of a pretrained model, or the one that begins it."""
    end = own_id(trunk.get("eos_token_id"), len(vocabulary))
    return vocabulary.bos if end is None else end


class HighrankLanguageModel(ExportedModel):
    """A language model of this project behind the interface of transformers' causal language models.

    Logits are log-probabilities, which every head normalises. A padded sequence is padded on the left, and
    gets the result that it has alone.
    """

    config_class = HighrankLmConfig

    def __init__(self, config: HighrankLmConfig) -> None:
        super().__init__(config)
        own, words, trunk = config.lm_config(), config.vocab_size, None
        if values := config.trunk:
            found = carried_architecture(values)
            own = with_architecture(own, found, words)
            trunk = pretrained_trunk(own, found)
        self.model = LanguageModel(own, words, config.line_end_id, trunk)
        self.post_init()  # type: ignore[no-untyped-call]
        self.loss_type = "ForCausalLM"  # the trainer counts no first labels, which nothing predicts

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: StateCache[TrunkState] | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> CausalLMOutputWithPast:
        """Read tokens (B, T).

        Args:
            input_ids: token ids.
            attention_mask: (B, at least T), zero at padding, which is on the left.
            past_key_values: the state before these tokens; None = the beginning of a text.
            labels: (B, T) ids that each position should have, shifted here; −100 is not scored. With them
                the output has the mean loss in nats, and no logits, which would be the largest tensor.
            use_cache: True to return the state after the tokens.
            logits_to_keep: number of last positions with logits; 0 = all.
            return_dict: ignored; the result is never a tuple.
            num_items_in_batch: divides the loss, see :func:`lm.huggingface.generation.mean_over`.

        Raises ValueError for padding on the right.
        """
        require_left_padding(attention_mask)
        before = None if past_key_values is None else past_key_values.state
        hidden, state = self._read(input_ids, before, attention_mask)
        cache: Any = None  # of transformers' own class for its type checker
        if use_cache is not False:
            seen = past_key_values.tokens if past_key_values else 0
            cache = StateCache(state, seen + input_ids.shape[1])
        return self.causal_output(hidden, labels, attention_mask, cache, logits_to_keep, num_items_in_batch)

    def _read(
        self, tokens: Tensor, before: TrunkState | None, mask: Tensor | None
    ) -> tuple[Layers, TrunkState]:
        """Hidden states (T, B, ·) and the state after tokens (B, T). A beginning text forgets the padding."""
        state = self.model.initial_state(len(tokens)) if before is None else before
        if before is not None or mask is None or bool(mask[:, 0].all()):
            outputs = self.model(tokens.T, state)
            return outputs.hidden, outputs.state
        padding = (mask[:, : tokens.shape[1]].cumsum(1) == 0).sum(1)  # (B,)
        cuts = sorted({0, *padding.tolist(), tokens.shape[1]} - {tokens.shape[1]})
        read = []
        for start, stop in zip(cuts, [*cuts[1:], tokens.shape[1]], strict=True):
            outputs = self.model(tokens[:, start:stop].T, state.forgetting(padding != start))
            state = outputs.state
            read.append(outputs.hidden)
        lower = zip(*(hidden.lower for hidden in read), strict=True)
        return Layers(torch.cat([hidden.last for hidden in read]), tuple(map(torch.cat, lower))), state

    def for_head(self, hidden: Layers) -> Layers:
        shaped: Layers = self.model.for_head(hidden)
        return shaped


AutoConfig.register(HighrankLmConfig.model_type, HighrankLmConfig)
AutoModelForCausalLM.register(HighrankLmConfig, HighrankLanguageModel)
