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
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Marks, StepFunction
from dialog.export import generation_config
from dialog.seq2seq import Seq2Seq
from lm.huggingface.generation import StateCache
from lm.trunks.trunk import RowState


class Generator(PreTrainedModel, GenerationMixin):
    """``step``, a step function of ``model``, as a decoder-only model: the contexts are in the state."""

    def __init__(self, model: Seq2Seq, step: StepFunction[Any]) -> None:
        super().__init__(PretrainedConfig(vocab_size=model.head.vocab_size))
        self.model, self.step = model, step

    def forward(
        self,
        input_ids: Tensor,
        past_key_values: StateCache[RowState],
        use_cache: bool = True,
        return_dict: bool = True,
    ) -> CausalLMOutputWithPast:
        """The last of ``input_ids`` (R, t) → log-probabilities (R, 1, V), and the state after it."""
        log_probs, state = self.step(input_ids[:, -1], past_key_values.state)
        return CausalLMOutputWithPast(logits=log_probs[:, None], past_key_values=StateCache(state))


def generate(
    generator: Generator, state: RowState, sources: int, config: DecodeConfig, marks: Marks
) -> list[list[tuple[int, ...]]]:
    """Beam search of transformers with the arguments of ``beam_search``: tokens without <s> and </s>."""
    rows = torch.arange(sources).repeat_interleave(config.beam)
    rules = generation_config(config, marks)
    rules.update(num_return_sequences=config.nbest, pad_token_id=marks.eos)
    found = generator.generate(
        torch.full((sources, 1), marks.bos),
        generation_config=rules,
        past_key_values=StateCache(state.select(rows)),
    )
    responses = [_until(marks.eos, row[1:]) for row in found.tolist()]
    return [responses[start : start + config.nbest] for start in range(0, len(responses), config.nbest)]


def _until(end: int, tokens: Sequence[int]) -> tuple[int, ...]:
    return tuple(tokens[: tokens.index(end)] if end in tokens else tokens)
