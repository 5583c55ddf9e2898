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
WORDS = 10_000  # of whole models
LOSS_TOKENS, VOCABULARIES = 512, (32_000, 128_000)  # of a batch; words of Llama 2 and of Llama 3
CONFIG = TransformerConfig(heads=HEADS, feedforward_size=INNER)
HEADS_OF_OURS = {
    "softmax, K = 1": HeadConfig(kind="softmax", output_bias=False),
    "mos, K = 15": HeadConfig(kind="mos", components=15, output_bias=False),
}


def cases(ceiling: Ceiling) -> list[Case]:
    """Both networks on word vectors, then whole models, then losses; the first variant is the peer."""
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
        Case(
            f"training step with a head, V = {WORDS:,}",
            [
                Variant("transformers", _whole_training_by_theirs),
                *(Variant(f"ours, {name}", partial(_whole_training, name)) for name in HEADS_OF_OURS),
            ],
            ("tokens", STEPS * STREAMS),
            memory=False,
        ),
        Case(
            f"{PROMPT} tokens at once and {WRITTEN} one by one, with a head, V = {WORDS:,}",
            [
                Variant("transformers", _generated_by_theirs),
                *(Variant(f"ours, {name}", partial(_generated, name)) for name in HEADS_OF_OURS),
            ],
            ("tokens", PROMPT + WRITTEN),
            memory=False,
        ),
        *(_losses(words) for words in VOCABULARIES),
    ]


def _losses(words: int) -> Case:
    """Output layer and loss, forward and backward, of ``LOSS_TOKENS`` tokens."""
    variants = [Variant("transformers", partial(_their_loss, words))]
    for name, head in HEADS_OF_OURS.items():
        variants.append(Variant(f"ours, {name}", partial(_our_loss, head, words)))
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


def _their_model(words: int = 0) -> Any:
    """Llama, with an output layer if there are ``words``."""
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=words or 8,
        hidden_size=SIZE,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
    )
    return LlamaForCausalLM(config) if words else LlamaModel(config)


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


def _our_model(name: str) -> torch.nn.ModuleDict:
    trunk, head = _our_trunk(), Head(HEADS_OF_OURS[name], SIZE, WORDS)
    return torch.nn.ModuleDict({"embedding": torch.nn.Embedding(WORDS, SIZE), "trunk": trunk, "head": head})


def _whole_training(name: str) -> Work:
    model = _our_model(name).train()
    tokens, targets = torch.randint(WORDS, (2, STEPS, STREAMS))
    state = _our_trunk().initial_state(STREAMS)

    def work() -> None:
        model.zero_grad()
        outputs = model["trunk"](model["embedding"](tokens), state).outputs
        (model["head"].loss(outputs, targets) / targets.numel()).backward()

    return work


def _whole_training_by_theirs() -> Work:
    model = _their_model(WORDS).train()
    tokens, targets = torch.randint(WORDS, (2, STREAMS, STEPS))

    def work() -> None:
        model.zero_grad()
        model(input_ids=tokens, labels=targets, shift_labels=targets, use_cache=False).loss.backward()

    return work


def _generated(name: str) -> Work:
    model = _our_model(name).eval()
    prompt = torch.randint(WORDS, (PROMPT, 1))

    @torch.no_grad()
    def work() -> None:
        part, state = prompt, model["trunk"].initial_state(1)
        for _ in range(WRITTEN):
            outputs, _, state = model["trunk"](model["embedding"](part), state)
            part = model["head"].log_probs(outputs[-1:]).argmax(-1)

    return work


def _generated_by_theirs() -> Work:
    model = _their_model(WORDS).eval()
    prompt = torch.randint(WORDS, (1, PROMPT))

    @torch.no_grad()
    def work() -> None:
        part, known = prompt, None
        for _ in range(WRITTEN):
            read = model(input_ids=part, past_key_values=known, use_cache=True, logits_to_keep=1)
            part, known = read.logits.argmax(-1), read.past_key_values

    return work
