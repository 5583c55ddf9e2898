"""Beam search of a dialog model with random weights, which finishes nothing early: the worst case."""

from functools import partial

import torch

from benchmarks.timing import Case, Ceiling, Variant, Work
from dialog.batches import Item, collate
from dialog.beam import Marks, beam_search
from dialog.schema import DecodeConfig, DialogConfig
from dialog.seq2seq import Seq2Seq

VOCAB, LENGTH, BEAM = 10_000, 30, 10
PRECISIONS = ("float32", "bfloat16")
CONFIG = DialogConfig.model_validate(
    {
        "encoder": {"kind": "flat", "cell": "lstm", "context_size": 500},
        "decoder": {"cell": "lstm", "hidden_size": 500, "layers": 2},
        "head": {"kind": "mos", "components": 10, "embedding_size": 200},
    }
)


def cases(ceiling: Ceiling) -> list[Case]:
    """Beam 10, length 30, two LSTM layers of 500, MoS with ten components, from one source to 32 at once."""
    head, hidden = CONFIG.head, CONFIG.decoder.hidden_size
    size = head.embedding_size or hidden
    words = CONFIG.model.embedding_size
    layers = 4 * hidden * (words + 3 * hidden) + head.components * size * hidden
    output = head.components * size * VOCAB
    found = []
    for sources in (1, 8, 32):
        flops = 2 * sources * BEAM * LENGTH
        floors = {p: ceiling.seconds(flops * layers) + ceiling.seconds(flops * output, p) for p in PRECISIONS}
        variants = [
            Variant(f"{precision} products", partial(work_on, sources, precision), floors[precision])
            for precision in PRECISIONS
        ]
        found.append(Case(f"beam search, {sources} sources", variants, ("sentences", sources), memory=False))
    return found


def work_on(sources: int, precision: str) -> Work:
    torch.manual_seed(1)
    model = Seq2Seq(CONFIG, VOCAB).eval()
    items = [Item(((2, 5, 6, 3),), (0,), (2, 7, 3)) for _ in range(sources)]
    decode = DecodeConfig(beam=BEAM, nbest=5, max_length=LENGTH, min_length=LENGTH)
    with torch.no_grad():
        state = model.start(collate(items, 0))
    step = partial(model.step, bf16_products=precision == "bfloat16")
    return lambda: beam_search(step, state, sources, decode, Marks(2, 3, (0, 1, 2)))
