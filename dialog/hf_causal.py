"""Dialog models on a pretrained causal network as causal language models of transformers.

A text is a stream: the context, and the response from the token before it on.

B streams · T tokens · E embedding size · V words.
"""

import json
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutputWithPast

from dialog.config import DialogConfig
from dialog.seq2seq import Seq2Seq
from lm.huggingface.architecture import carried_architecture, read_architecture
from lm.huggingface.generation import ExportedConfig, ExportedModel, StateCache, require_left_padding, tuples
from lm.huggingface.starting import with_trunk
from lm.regularize import dropout
from lm.runs.inputs import TRUNK
from lm.text.tokenizers import DIALOG, UNK
from lm.text.vocabulary import Codec
from lm.trunks.cache import CacheState
from lm.trunks.names import pretrained_path


class HighrankStreamConfig(ExportedConfig):
    """Config of an exported dialog model on a causal network.

    ``dialog_token_id`` is the mark of the beginning of a dialog, None with a chat template, which names the
    speakers itself.
    """

    model_type = "highrank_dialog_stream"
    unk_token_id: int = 1
    dialog_token_id: int | None = None

    @classmethod
    def of(cls, config: DialogConfig, codec: Codec) -> Self:
        """The config of the model of a run."""
        path, vocabulary = pretrained_path(config.model.trunk), codec.vocabulary
        assert path is not None
        found = read_architecture(path)
        unk, start = vocabulary.ids([UNK, DIALOG])
        return cls(
            settings=with_trunk(config, Path(TRUNK)).model_dump(mode="json"),
            trunk=json.loads(found.content),
            vocab_size=len(vocabulary),
            hidden_size=found.hidden_size,
            num_hidden_layers=found.layers,
            unk_token_id=unk,
            dialog_token_id=None if codec.chat else start,
            bos_token_id=codec.response_start,
            eos_token_id=vocabulary.eos,
            pad_token_id=vocabulary.pad,
            tie_word_embeddings=config.head.tied,
        )


class HighrankStreamModel(ExportedModel):
    """A dialog model on a causal network behind the interface of transformers' causal language models.

    Logits are log-probabilities, which every head normalises. Padding is on the left.
    """

    config_class = HighrankStreamConfig

    def __init__(self, config: HighrankStreamConfig) -> None:
        super().__init__(config)
        settings = DialogConfig.model_validate(tuples(config.settings or {}))
        found = carried_architecture(config.trunk or {})
        self.model = Seq2Seq(settings, config.vocab_size, config.unk_token_id, found)
        self.post_init()  # type: ignore[no-untyped-call]
        self.loss_type = "ForCausalLM"  # the trainer counts no first labels, which nothing predicts

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        past_key_values: StateCache[CacheState] | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> CausalLMOutputWithPast:
        """Read tokens (B, T), as :meth:`lm.hf.HighrankLanguageModel.forward` with its other arguments.

        Args:
            token_type_ids: (B, T) one at earlier utterances of the responder; None = speakers take turns, and
                the last utterance before the response is the other's.
            past_key_values: the state before these tokens of a response; None = the beginning of a context.

        Raises ValueError for padding on the right.
        """
        require_left_padding(attention_mask)
        decoder, seen, steps = self.model.decoder, 0, input_ids.shape[1]
        words = self.model.embedding(input_ids)
        if past_key_values is not None:
            seen = past_key_values.tokens
            words = dropout(words, decoder.dropout, self.training)
            hidden, state = decoder.read(words.transpose(0, 1), past_key_values.state)
        else:
            kept = torch.ones_like(input_ids) if attention_mask is None else attention_mask[:, :steps]
            floors = self.floors(input_ids, kept.bool()) if token_type_ids is None else token_type_ids
            marked = dropout(words + self.model.encoder.floor(floors), decoder.dropout, self.training)
            hidden, state = decoder.begin(marked, kept)
        cache: Any = StateCache(state, seen + steps) if use_cache is not False else None
        return self.causal_output(hidden, labels, attention_mask, cache, logits_to_keep, num_items_in_batch)

    def floors(self, tokens: Tensor, kept: Tensor) -> Tensor:
        """One at the responder's utterances in streams (B, T) whose speakers take turns, else zero."""
        marks = self.config
        if marks.dialog_token_id is None:
            return torch.zeros_like(tokens)
        begun = (tokens == marks.bos_token_id) & kept
        context = begun.long().cumsum(1) == 1  # from the first <s> to that of the response
        ends = (tokens == marks.eos_token_id) & context
        turns = ends.flip(1).long().cumsum(1).flip(1)  # utterances from here to the response
        opening = (tokens == marks.dialog_token_id) & context
        first = ends.long().cumsum(1) - ends.long() == 0
        own: Tensor = (turns % 2 == 0) & (turns > 0) & ~(first & opening.any(1, keepdim=True))
        return own.long()
