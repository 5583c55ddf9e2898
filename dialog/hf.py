"""Dialog models of this project as models of transformers.

Importing the module registers them. ``AutoModelForSeq2SeqLM.from_pretrained`` then opens the folders that
``dialog export`` writes, or ``AutoModelForCausalLM`` those of models on a pretrained causal network.

B contexts · M tokens of a context · S positions to attend to · C encoded context size · T tokens of a
response · V words.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils.generic import ModelOutput

from dialog.batches import Batch, Item, collate
from dialog.config import DialogConfig
from dialog.encoders import Memory
from dialog.hf_causal import HighrankStreamConfig, HighrankStreamModel
from dialog.seq2seq import Seq2Seq
from lm.heads.cpr import SourceWords
from lm.huggingface.architecture import carried_architecture, read_architecture
from lm.huggingface.generation import IGNORED, ExportedConfig, ExportedModel, StateCache, mean_over, tuples
from lm.huggingface.starting import with_trunk
from lm.runs.inputs import TRUNK
from lm.text.tokenizers import DIALOG, UNK
from lm.text.vocabulary import Vocabulary
from lm.trunks.names import pretrained_path
from lm.trunks.trunk import RowState


class HighrankDialogConfig(ExportedConfig):
    """Config of an exported dialog model."""

    model_type = "highrank_dialog"
    is_encoder_decoder = True
    unk_token_id: int = 1
    dialog_token_id: int = 1
    decoder_start_token_id: int | None = None

    @classmethod
    def of(cls, config: DialogConfig, vocabulary: Vocabulary) -> Self:
        """The config of a model."""
        unk, start = vocabulary.ids([UNK, DIALOG])
        size, layers, trunk = config.decoder.hidden_size, config.decoder.layers, None
        if path := pretrained_path(config.model.trunk):
            found = read_architecture(path, dialog=True)
            size, layers, trunk = found.hidden_size, found.layers, json.loads(found.content)
            config = with_trunk(config, Path(TRUNK))
        return cls(
            settings=config.model_dump(mode="json"),
            trunk=trunk,
            vocab_size=len(vocabulary),
            hidden_size=size,
            num_hidden_layers=layers,
            unk_token_id=unk,
            dialog_token_id=start,
            bos_token_id=vocabulary.bos,
            eos_token_id=vocabulary.eos,
            pad_token_id=vocabulary.pad,
            decoder_start_token_id=vocabulary.bos,
            is_encoder_decoder=True,
            tie_word_embeddings=config.head.tied,
        )

    def dialog_config(self) -> DialogConfig:
        """The run's own config."""
        return DialogConfig.model_validate(tuples(self.settings or {}))


@dataclass
class EncodedContexts(ModelOutput):
    """The encoder's memory, one row a context."""

    last_hidden_state: Tensor | None = None  # (B, S, C)
    summary: Tensor | None = None  # (B, C), or (B, P, E) as of the memory of a pretrained encoder
    mask: Tensor | None = None  # (B, S) false at padding
    source_words: Tensor | None = None  # (B, M) of a head that reads the words of the contexts
    source_keys: Tensor | None = None  # (B, M, E)


class ContextEncoder:
    """The encoder of a model, in the form that generation calls."""

    def __init__(self, model: "HighrankDialogModel") -> None:
        self._model = model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> EncodedContexts:
        """Encode contexts (B, M), see :meth:`HighrankDialogModel.forward`. The last three are ignored."""
        model = self._model.model
        memory = model.encode(self._model.batch(input_ids, attention_mask, token_type_ids))
        source = model.source_words(memory)
        read = () if source is None else (source.words, source.keys)
        return EncodedContexts(memory.states, memory.summary, memory.mask, *read)

    __call__ = forward


class HighrankDialogModel(ExportedModel):
    """A dialog model of this project behind the interface of transformers' encoder-decoder models.

    Logits are log-probabilities, which every head normalises. A context is one sequence of tokens, in which
    every utterance stands between ``<s>`` and ``</s>``. Padding may be on either side.
    """

    config_class = HighrankDialogConfig

    def __init__(self, config: HighrankDialogConfig) -> None:
        super().__init__(config)
        self.settings = config.dialog_config()
        found = carried_architecture(config.trunk) if config.trunk else None
        self.model = Seq2Seq(self.settings, config.vocab_size, config.unk_token_id, found)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_encoder(self, modality: str | None = None) -> Any:
        """The encoder, as generation calls it. ``modality`` is ignored."""
        return ContextEncoder(self)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: EncodedContexts | None = None,
        past_key_values: StateCache[RowState] | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Seq2SeqLMOutput:
        """Read tokens of responses (B, T) after contexts (B, M).

        Args:
            input_ids: contexts. Before the beginning of a conversation, its mark is added as in training.
            attention_mask: (B, M) zero at padding, besides ``<pad>``.
            token_type_ids: (B, M) one at utterances of the responder; None = speakers take turns, and the
                last utterance is the other's.
            decoder_input_ids: responses so far, or the tokens after those of ``past_key_values``.
            encoder_outputs: encoded contexts instead of ``input_ids``.
            past_key_values: state before these tokens.
            labels: (B, T) responses up to ``</s>``; −100, ``<pad>`` and ``<s>`` are left out. With them the
                output has the mean loss in nats, and no logits, which would be the largest tensor.
            use_cache: True to return the state after the tokens.
            return_dict: ignored; the result is never a tuple.
            num_items_in_batch: divides the loss instead of the number of scored labels, see
                :func:`lm.huggingface.generation.mean_over`.

        Raises:
            ValueError: ``labels`` without ``input_ids``, neither ``labels`` nor ``decoder_input_ids``, or no
                contexts.
        """
        if labels is not None:
            if input_ids is None:
                raise ValueError("labels need input_ids: give the contexts, which the loss encodes itself")
            loss, scored = self._loss(input_ids, attention_mask, token_type_ids, labels)
            return Seq2SeqLMOutput(loss=mean_over(loss, scored, num_items_in_batch))
        if decoder_input_ids is None:
            raise ValueError("give decoder_input_ids for logits, or input_ids with labels for a loss")
        if past_key_values is not None:
            state, seen = past_key_values.state, past_key_values.tokens
        else:
            if encoder_outputs is None and input_ids is None:
                raise ValueError("give input_ids, the contexts, or encoder_outputs or past_key_values")
            encoded = encoder_outputs or self.get_encoder()(input_ids, attention_mask, token_type_ids)
            state, seen = self._start(encoded), 0
        steps = []
        for tokens in decoder_input_ids.T:
            log_probs, state = self.model.step(tokens, state)
            steps.append(log_probs)
        cache: Any = StateCache(state, seen + len(steps)) if use_cache is not False else None
        logits: Any = torch.stack(steps, 1)
        return Seq2SeqLMOutput(logits=logits, past_key_values=cache)

    def batch(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Batch:
        """The batch of contexts (B, M) and responses (B, T), cut as in training: see :meth:`forward`."""
        marks = self.config
        exists = input_ids != marks.pad_token_id
        if attention_mask is not None:
            exists &= attention_mask.bool()
        items = []
        for row, tokens in enumerate(input_ids):
            kept = exists[row]
            floors = None if token_type_ids is None else token_type_ids[row][kept].tolist()
            said = [] if labels is None else labels[row][self._scored(labels[row])].tolist()
            response = (marks.bos_token_id, *(said or [marks.eos_token_id]))
            items.append(Item(*self._context(tokens[kept].tolist(), floors), response))
        return collate(items, marks.pad_token_id).to(input_ids.device)

    def _context(
        self, tokens: Sequence[int], floors: Sequence[int] | None
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
        """The utterances of a context in token ids, as many and as long as in training, and their floors."""
        marks, data = self.config, self.settings.data
        said: list[tuple[list[int], int]] = []
        for place, token in enumerate(tokens):
            if token == marks.bos_token_id or not said:
                said.append(([], floors[place] if floors else 0))
            if token not in (marks.bos_token_id, marks.eos_token_id):
                said[-1][0].append(token)
        start = [marks.dialog_token_id]
        if said and said[0][0] == start:
            said = said[1:]
        if floors is None:
            said = [(words, (len(said) - place + 1) % 2) for place, (words, _) in enumerate(said)]
        heard = [(start, 0), *said][-data.context :]
        utterances = (
            (marks.bos_token_id, *words[: data.max_tokens - 2], marks.eos_token_id) for words, _ in heard
        )
        return tuple(utterances), tuple(floor for _, floor in heard)

    def _start(self, encoded: EncodedContexts) -> RowState:
        assert encoded.summary is not None
        assert encoded.last_hidden_state is not None
        assert encoded.mask is not None
        source = None
        if encoded.source_words is not None and encoded.source_keys is not None:
            rows = torch.arange(len(encoded.source_words), device=encoded.source_words.device)
            source = SourceWords(encoded.source_words, encoded.source_keys, rows)
        memory = Memory(encoded.summary, encoded.last_hidden_state, encoded.mask)
        state: RowState = self.model.begin(memory, source)
        return state

    def _scored(self, labels: Tensor) -> Tensor:
        """True at labels that are tokens of a response."""
        skipped = (IGNORED, self.config.pad_token_id, self.config.bos_token_id)
        return ~torch.isin(labels, labels.new_tensor(skipped))

    def _loss(
        self, contexts: Tensor, mask: Tensor | None, floors: Tensor | None, labels: Tensor
    ) -> tuple[Tensor, int]:
        """Loss of the scored tokens, and their number. Rows without any do not count as empty responses."""
        rows = self._scored(labels).any(1)
        if not rows.any():
            return self.get_input_embeddings().weight.sum() * 0, 0
        mask, floors = (None if given is None else given[rows] for given in (mask, floors))
        hidden, targets, streams = self.model.hidden(self.batch(contexts[rows], mask, floors, labels[rows]))
        loss: Tensor = self.model.head.loss(hidden, targets, streams=streams)
        return loss, len(targets)


AutoConfig.register(HighrankDialogConfig.model_type, HighrankDialogConfig)
AutoModelForSeq2SeqLM.register(HighrankDialogConfig, HighrankDialogModel)
AutoConfig.register(HighrankStreamConfig.model_type, HighrankStreamConfig)
AutoModelForCausalLM.register(HighrankStreamConfig, HighrankStreamModel)
