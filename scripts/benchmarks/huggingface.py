"""A dialog model driven by ``generate`` of Hugging Face's transformers, to compare our beam search with.

Only the search is theirs: each step asks the model's own step function, and its state, which stands where
transformers keeps keys and values, is reordered with the hypotheses. The rules are set to be ours: scores are
sums divided by length^length_penalty, </s> counted, and a source is done when no live hypothesis can reach
the finished ones. Three differences are left. Theirs waits for as many finished hypotheses as the beam has,
not for nbest; finished sources stay in the batch until the last one is done; and at full length every
hypothesis ends at no cost, where ours ends with the probability of </s> or follows the finished ones.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Marks, StepFunction
from dialog.seq2seq import Seq2Seq
from lm.trunks.trunk import RowState


class StateCache:
    """A decoding state in the place of a cache: its rows are those of the hypotheses."""

    def __init__(self, state: RowState) -> None:
        self.state = state

    def get_seq_length(self) -> int:
        """Tokens that the state has seen; transformers asks before the first one only."""
        return 0

    def reorder_cache(self, rows: Tensor) -> None:
        """Row i becomes row ``rows[i]``."""
        self.state = self.state.select(rows)


class Generator(PreTrainedModel, GenerationMixin):
    """``step``, a step function of ``model``, as a decoder-only model: the contexts are in the state."""

    def __init__(self, model: Seq2Seq, step: StepFunction[Any]) -> None:
        super().__init__(PretrainedConfig(vocab_size=model.head.vocab_size))
        self.model, self.step = model, step

    def forward(
        self, input_ids: Tensor, past_key_values: StateCache, use_cache: bool = True, return_dict: bool = True
    ) -> CausalLMOutputWithPast:
        """The last of ``input_ids`` (R, t) → log-probabilities (R, 1, V), and the state after it."""
        log_probs, state = self.step(input_ids[:, -1], past_key_values.state)
        return CausalLMOutputWithPast(logits=log_probs[:, None], past_key_values=StateCache(state))


def generate(
    generator: Generator, state: RowState, sources: int, config: DecodeConfig, marks: Marks
) -> list[list[tuple[int, ...]]]:
    """Beam search of transformers with the arguments of ``beam_search``: tokens without <s> and </s>."""
    rows = torch.arange(sources).repeat_interleave(config.beam)
    found = generator.generate(
        torch.full((sources, 1), marks.bos),
        generation_config=_rules(config, marks),
        past_key_values=StateCache(state.select(rows)),
    )
    responses = [_until(marks.eos, row[1:]) for row in found.tolist()]
    return [responses[start : start + config.nbest] for start in range(0, len(responses), config.nbest)]


def _rules(config: DecodeConfig, marks: Marks) -> GenerationConfig:
    return GenerationConfig(
        num_beams=config.beam,
        num_return_sequences=config.nbest,
        min_new_tokens=config.min_length,
        max_new_tokens=config.max_length + 1,  # </s> is a new token too
        forced_eos_token_id=marks.eos,  # at full length
        length_penalty=config.length_penalty,
        early_stopping="never",
        no_repeat_ngram_size=config.no_repeat_ngram,
        suppress_tokens=list(marks.forbidden),
        bos_token_id=marks.bos,
        eos_token_id=marks.eos,
        pad_token_id=marks.eos,
    )


def _until(end: int, tokens: Sequence[int]) -> tuple[int, ...]:
    return tuple(tokens[: tokens.index(end)] if end in tokens else tokens)
