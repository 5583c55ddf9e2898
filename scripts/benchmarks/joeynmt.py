"""An update of joeynmt's recurrent model, in an interpreter that has joeynmt and none of Highrank.

Run as a script, it reads a line and answers with one, when an update is done: so variants of two
interpreters take turns. joeynmt 2.3 wants packages older than ours.
"""

import random
import sys
from typing import Any, NamedTuple


class Sizes(NamedTuple):
    """Of both models: sequence to sequence with attention (Bahdanau et al. 2015, Luong et al. 2015)."""

    vocab: int = 10_000
    embedding: int = 256
    hidden: int = 512
    responses: int = 64


SIZES = Sizes()
SPECIALS = 4  # <unk>, <pad>, <s>, </s>, of which joeynmt has the first in this order


def conversations() -> list[tuple[list[int], list[int]]]:
    """Contexts of 8 to 40 tokens with their responses of 2 to 22; ids without specials."""
    draw = random.Random(1)

    def tokens(least: int, most: int) -> list[int]:
        return [draw.randrange(SPECIALS, SIZES.vocab) for _ in range(draw.randint(least, most))]

    return [(tokens(8, 40), tokens(2, 22)) for _ in range(SIZES.responses)]


def _padded(rows: list[list[int]], pad: int) -> Any:
    import torch

    longest = max(map(len, rows))
    return torch.tensor([row + [pad] * (longest - len(row)) for row in rows])


def _model(attention: str) -> Any:
    from types import SimpleNamespace

    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    special = SimpleNamespace(
        unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None,
        unk_id=0, pad_id=1, bos_id=2, eos_id=3, sep_id=None, lang_tags=[],
    )  # fmt: skip
    words = Vocabulary([str(number) for number in range(SIZES.vocab - SPECIALS)], special)
    part = {
        "type": "recurrent", "rnn_type": "lstm", "embeddings": {"embedding_dim": SIZES.embedding},
        "num_layers": 1,
    }  # fmt: skip
    both_ways = {"hidden_size": SIZES.hidden // 2, "bidirectional": True}  # it has no other encoder
    attended = {
        "hidden_size": SIZES.hidden,
        "attention": attention,
        "init_hidden": "bridge",
        "input_feeding": True,
    }
    config = {"encoder": part | both_ways, "decoder": part | attended, "tied_embeddings": True}
    model = build_model(config, words, words)
    model.loss_function = ("crossentropy", 0.0)
    return model


def main(attention: str, threads: int) -> None:
    """Answers every line of the standard input with one, once an update is done."""
    import torch
    from joeynmt.batch import Batch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = _model(attention).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pairs = conversations()
    sources = [[*source, 3] for source, _ in pairs]
    targets = [[2, *target, 3] for _, target in pairs]

    def update() -> None:  # as TrainManager._train_step and what follows it
        batch = Batch(
            src=_padded(sources, 1), src_length=torch.tensor([len(row) for row in sources]),
            src_prompt_mask=None, trg=_padded(targets, 1), trg_prompt_mask=None,
            indices=torch.arange(len(pairs)), device=torch.device("cpu"), pad_index=1, eos_index=3,
        )  # fmt: skip
        batch.sort_by_src_length()
        loss, *_ = model(return_type="loss", **vars(batch))
        batch.normalize(loss, normalization="tokens").backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.zero_grad()

    for _ in sys.stdin:
        update()
        print("done", flush=True)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose module has the name of the package
    main(sys.argv[1], int(sys.argv[2]))
