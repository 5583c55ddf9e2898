"""Beam search of a dialog model with random weights: ours, and Hugging Face's ``generate`` if it is there.

Where no response ends early, which is the worst case, a search can gain little: the model is nearly all of
the work. Responses to a batch differ in length, however, and there it counts that sources leave.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from benchmarks.timing import Case, Ceiling, Variant, Work
from dialog.batches import Item, collate
from dialog.config import DialogConfig
from dialog.decoding.beam import beam_search
from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Marks, StepFunction
from dialog.seq2seq import Seq2Seq
from lm.trunks.trunk import RowState

VOCAB, LENGTH, BEAM = 10_000, 30, 10
MARKS = Marks(bos=2, eos=3, forbidden=(0, 1, 2))
DECODE = DecodeConfig(beam=BEAM, nbest=5, max_length=LENGTH)
SPREAD = (2, 6, 10, 14, 18, 22, 26, 30)  # words of the responses to a batch
# Weights so large that the next word is about as open as in a trained model: a perplexity near 30.
CONFIG = DialogConfig.model_validate(
    {
        "model": {"init_range": 0.4},
        "encoder": {"kind": "flat", "cell": "lstm", "context_size": 500},
        "decoder": {"cell": "lstm", "hidden_size": 500, "layers": 2},
        "head": {"kind": "mos", "components": 10, "embedding_size": 200, "context_scale": 60},
    }
)
StepOf = Callable[[Seq2Seq], StepFunction[RowState]]
Step = StepFunction["Clocked"]
Found = list[tuple[int, ...]]  # the best response to every source
Search = Callable[[Seq2Seq, Step, "Clocked", int], Found]


def cases(ceiling: Ceiling) -> list[Case]:
    """Beam 10, length 30, two LSTM layers of 500, MoS with ten components, from one source to 32 at once."""
    full = [_case(f"{sources} sources", (LENGTH,) * sources, ceiling) for sources in (1, 8, 32)]
    return [*full, _case(f"8 sources of {SPREAD[0]} to {SPREAD[-1]} words", SPREAD, ceiling)]


def _case(name: str, lengths: tuple[int, ...], ceiling: Ceiling) -> Case:
    """Responses of these lengths, one a source; the comparison is for batches of 8."""
    head, hidden = CONFIG.head, CONFIG.decoder.hidden_size
    size = head.embedding_size or hidden
    layers = 4 * hidden * (CONFIG.model.embedding_size + 3 * hidden) + head.components * size * hidden
    flops = 2 * sum(lengths) * BEAM

    def variant(title: str, step: StepOf, search: Search, precision: str = "float32") -> Variant:
        output = ceiling.seconds(flops * head.components * size * VOCAB, precision)
        floor = ceiling.seconds(flops * layers) + output
        return Variant(title, partial(work_on, lengths, step, search), floor)

    variants = [
        variant("float32 products", exact_step, ours),
        variant("bfloat16 products", rounded_step, ours, "bfloat16"),
    ]
    if len(lengths) == 8 and find_spec("transformers") is not None:
        variants += [
            variant("Hugging Face generate", exact_step, theirs),
            variant("Hugging Face generate, plain head", plain_step, theirs),
        ]
    return Case(f"beam search, {name}", variants, ("sentences", len(lengths)), False, changed)


def changed(reference: Found, found: Found) -> dict[str, float]:
    """The share of the reference's tokens in whose places ``found`` has others, or none."""
    kept = sum(
        token == other
        for response, others in zip(reference, found, strict=True)
        for token, other in zip(response, others, strict=False)
    )
    return {"tokens changed": 1 - kept / sum(map(len, reference))}


@dataclass(frozen=True)
class Clocked:
    """A decoding state that knows how many words its response still has."""

    inner: RowState
    left: Tensor  # (R,)

    def select(self, rows: Tensor) -> "Clocked":
        return Clocked(self.inner.select(rows), self.left[rows])


def exact_step(model: Seq2Seq) -> StepFunction[RowState]:
    return model.step


def rounded_step(model: Seq2Seq) -> StepFunction[RowState]:
    return partial(model.step, operand=model.head.output.rounded())


def plain_step(model: Seq2Seq) -> StepFunction[RowState]:
    """With the mixture as its formula says it, everything materialised."""

    def step(tokens: Tensor, state: RowState) -> tuple[Tensor, RowState]:
        hidden, after = model.decoder.step(model.embedding(tokens), state)
        return model.head.component_log_probs(hidden).logsumexp(1), after

    return step


def work_on(lengths: tuple[int, ...], step_of: StepOf, search: Search) -> Work:
    torch.manual_seed(1)
    model = Seq2Seq(CONFIG, VOCAB).eval()
    items = [Item(((2, 5 + source, 6, 3),), (0,), (2, 7, 3)) for source in range(len(lengths))]
    with torch.no_grad():
        state = Clocked(model.start(collate(items, 0)), torch.tensor(lengths))

    inner_step = step_of(model)

    def step(tokens: Tensor, state: Clocked) -> tuple[Tensor, Clocked]:
        log_probs, inner = inner_step(tokens, state.inner)
        log_probs -= torch.log1p(-log_probs[:, MARKS.eos].exp())[:, None]  # of all words but </s>
        log_probs[:, MARKS.eos] = -math.inf
        if bool((over := state.left <= 0).any()):
            log_probs[over] = -math.inf
            log_probs[over, MARKS.eos] = 0
        return log_probs, Clocked(inner, state.left - 1)

    return lambda: search(model, step, state, len(lengths))


def ours(model: Seq2Seq, step: Step, state: Clocked, sources: int) -> Found:
    return [found[0].tokens for found in beam_search(step, state, sources, DECODE, MARKS)]


def theirs(model: Seq2Seq, step: Step, state: Clocked, sources: int) -> Found:
    from benchmarks.huggingface import Generator, generate

    return [found[0] for found in generate(Generator(model, step), state, sources, DECODE, MARKS)]
