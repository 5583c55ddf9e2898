"""Our transformer against Llama of transformers of the same sizes: training, cached reading, losses."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import Case, Ceiling, Variant, Work
from lm.heads.config import HeadConfig
from lm.heads.head import Head
from lm.trunks.config import TransformerConfig
from lm.trunks.transformer import TransformerTrunk

SIZE, LAYERS, HEADS, INNER = 256, 4, 4, 688
STEPS, STREAMS = 128, 8  # of a training step
PROMPT, WRITTEN = 64, 64  # tokens read at once, then one after the other
LOSS_TOKENS, VOCABULARIES = 512, (32_000, 128_000)  # of a batch; words of Llama 2 and of Llama 3
CONFIG = TransformerConfig(heads=HEADS, feedforward_size=INNER)


def cases(ceiling: Ceiling) -> list[Case]:
    """Both networks on word vectors, without a head; the first variant is the peer."""
    weights = LAYERS * (4 * SIZE**2 + 3 * SIZE * INNER)
    training = ceiling.seconds(6 * STEPS * STREAMS * weights)
    reading = ceiling.seconds(2 * (PROMPT + WRITTEN) * weights)
    return [
        Case(
            f"training step, {LAYERS} layers of {SIZE}",
            [
                Variant("transformers", partial(_training, _theirs), training),
                Variant("ours", partial(_training, _ours), training),
            ],
            ("tokens", STEPS * STREAMS),
        ),
        Case(
            f"{PROMPT} tokens at once and {WRITTEN} one by one, cached",
            [
                Variant("transformers", _cached_by_theirs, reading),
                Variant("ours", _cached_by_ours, reading),
            ],
            ("tokens", PROMPT + WRITTEN),
            memory=False,
        ),
        *(_losses(words) for words in VOCABULARIES),
    ]


def _losses(words: int) -> Case:
    """Output layer and loss, forward and backward, of ``LOSS_TOKENS`` tokens."""
    variants = [Variant("transformers", partial(_their_loss, words))]
    for components in (1, 15):
        kind = "softmax" if components == 1 else "mos"
        head = HeadConfig.model_validate({"kind": kind, "components": components, "output_bias": False})
        variants.append(Variant(f"ours, {kind}, K = {components}", partial(_our_loss, head, words)))
    return Case(f"loss of {LOSS_TOKENS} tokens, V = {words:,}", variants, ("tokens", LOSS_TOKENS))


def _loss_inputs(words: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(1, LOSS_TOKENS, SIZE, requires_grad=True), torch.randint(words, (1, LOSS_TOKENS))


def _their_loss(words: int) -> Work:
    from transformers.loss.loss_utils import ForCausalLMLoss

    hidden, targets = _loss_inputs(words)
    layer = torch.nn.Linear(SIZE, words, bias=False)
    return lambda: ForCausalLMLoss(layer(hidden), None, words, shift_labels=targets).backward()


def _our_loss(config: HeadConfig, words: int) -> Work:
    hidden, targets = _loss_inputs(words)
    head = Head(config, SIZE, words)
    return lambda: (head.loss(hidden, targets) / LOSS_TOKENS).backward()


def _our_trunk() -> TransformerTrunk:
    torch.manual_seed(1)
    return TransformerTrunk(CONFIG, (SIZE, *[SIZE] * LAYERS), span=PROMPT + WRITTEN)


def _their_model() -> Any:
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=SIZE,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
    )
    return LlamaModel(config)


def _ours() -> tuple[torch.nn.Module, Callable[[Tensor], Tensor]]:
    trunk = _our_trunk()
    state = trunk.initial_state(STREAMS)
    return trunk, lambda words: trunk(words, state).outputs


def _theirs() -> tuple[torch.nn.Module, Callable[[Tensor], Tensor]]:
    model = _their_model()
    return model, lambda words: model(inputs_embeds=words.transpose(0, 1), use_cache=False).last_hidden_state


def _training(build: Callable[[], tuple[torch.nn.Module, Callable[[Tensor], Tensor]]]) -> Work:
    model, read = build()
    model.train()
    words = torch.randn(STEPS, STREAMS, SIZE, requires_grad=True)

    def work() -> None:
        model.zero_grad()
        read(words).square().mean().backward()

    return work


def _cached_by_ours() -> Work:
    trunk = _our_trunk().eval()
    words = torch.randn(PROMPT + WRITTEN, 1, SIZE)

    @torch.no_grad()
    def work() -> None:
        state = trunk.initial_state(1)
        for part in words.split([PROMPT, *[1] * WRITTEN]):
            state = trunk(part, state).state

    return work


def _cached_by_theirs() -> Work:
    model = _their_model().eval()
    words = torch.randn(1, PROMPT + WRITTEN, SIZE)

    @torch.no_grad()
    def work() -> None:
        known = None
        for part in words.split([PROMPT, *[1] * WRITTEN], 1):
            known = model(inputs_embeds=part, past_key_values=known, use_cache=True).past_key_values

    return work
