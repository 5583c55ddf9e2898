"""Transformers in dialog models: a plain formula, exhaustive search, whole trainings, refusals."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dialog.batches import Item, collate, list_examples
from dialog.config import DialogConfig
from dialog.corpora.corpus import load_dialogs
from dialog.decoding.beam import beam_search
from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Marks
from dialog.describe import describe
from dialog.seq2seq import Seq2Seq
from dialog.train import train
from dialog.trained import TrainedModel
from dialog.transformer import TransformerEncoder
from lm.config.load import load_config
from lm.engine.events import no_report
from lm.errors import ConfigError
from lm.runs.checkpoint import CheckpointStore
from lm.trunks.attention import rotated, turns
from lm.trunks.blocks import EPS

PAD, BOS, EOS, V = 0, 2, 3, 6
ITEMS = [
    Item(((2, 4, 3),), (0,), (2, 4, 3)),
    Item(((2, 5, 5, 4, 3), (2, 4, 5, 3)), (1, 0), (2, 5, 4, 4, 3)),
    Item(((2, 4, 3), (2, 3)), (0, 1), (2, 3)),
]


def toy(**more: Any) -> Seq2Seq:
    sections = {
        "model": {"embedding_size": 6, "init_range": 1.0},
        "encoder": {"kind": "transformer", "context_size": 8, "layers": 2},
        "decoder": {"kind": "transformer", "hidden_size": 12, "layers": 2},
        "transformer": {"heads": 2},
        "head": {"kind": "mos", "components": 2, "embedding_size": 6, "tied": True},
    }
    torch.manual_seed(1)
    model = Seq2Seq(DialogConfig.model_validate(sections | more), V).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def attended(queries: Tensor, keys: Tensor, values: Tensor, causal: bool) -> Tensor:
    """Of one sequence: (T, heads, d), (M, heads, d) twice → (T, heads · d)."""
    parts = []
    for head in range(queries.shape[1]):
        scores = queries[:, head] @ keys[:, head].T / queries.shape[2] ** 0.5
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        parts.append(scores.softmax(-1) @ values[:, head])
    return torch.cat(parts, -1)


def plain_stack(stack: Any, x: Tensor, memory: Tensor | None) -> Tensor:
    """One sequence (T, E), which reads a memory (M, C) if there is one, causally."""
    heads, d = stack.config.heads, stack.size // stack.config.heads
    by = turns(torch.zeros(1, dtype=torch.long), len(x), stack.config, x, d)[:, 0]
    x = x @ stack.enter.weight.T
    for block in stack.blocks:
        vectors = (norm(x, block.attention_norm.weight) @ block.attention.project.weight.T).view(
            len(x), 3, heads, d
        )
        queries, keys = rotated(vectors[:, 0], by), rotated(vectors[:, 1], by)
        x = x + attended(queries, keys, vectors[:, 2], memory is not None) @ block.attention.last.weight.T
        if memory is not None:
            queries = (norm(x, block.cross_norm.weight) @ block.cross.query.weight.T).view(len(x), heads, d)
            known = (memory @ block.cross.project.weight.T).view(len(memory), 2, heads, d)
            x = x + attended(queries, known[:, 0], known[:, 1], False) @ block.cross.last.weight.T
        gate, up = (norm(x, block.feedforward_norm.weight) @ block.feedforward.widen.weight.T).chunk(2, -1)
        x = x + (gate * gate.sigmoid() * up) @ block.feedforward.last.weight.T
    return norm(x, stack.norm.weight)


def test_scores_are_those_of_a_plain_formula() -> None:
    model = toy()
    encoder: Any = model.encoder
    assert isinstance(encoder, TransformerEncoder)
    found = model.nll(collate(ITEMS, PAD))
    for item, nll in zip(ITEMS, found, strict=True):
        words = torch.tensor([token for utterance in item.context for token in utterance])
        floors = [floor for floor, heard in zip(item.floors, item.context, strict=True) for _ in heard]
        marked = model.embedding(words) + encoder.floor(torch.tensor(floors))
        memory = plain_stack(encoder.stack, marked, None)
        said = torch.tensor(item.response)
        decoder: Any = model.decoder
        hidden = plain_stack(decoder.stack, model.embedding(said[:-1]), memory)
        wanted = -model.head.log_probs(hidden).gather(-1, said[1:, None]).sum()
        torch.testing.assert_close(nll, wanted)


@pytest.mark.parametrize("together", [1, 2, 5])
def test_scores_and_gradients_do_not_depend_on_the_rows_read_together(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = toy(), collate([*ITEMS, *ITEMS[1:]], PAD)
    found = []
    for rows in (100, together):
        monkeypatch.setattr("dialog.transformer.ROWS_TOGETHER", rows)
        model.zero_grad()
        objective, nll = model.objective(batch)
        objective.backward()
        found.append(
            [
                model.nll(batch).detach(),
                nll.detach(),
                *(p.grad.clone() for p in model.parameters() if p.grad is not None),
            ]
        )
    assert len(found[0]) == len(found[1]) > 20
    torch.testing.assert_close(found[1], found[0], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("count", [1, 3])
def test_a_wide_beam_finds_what_exhaustive_search_finds(count: int) -> None:
    model, longest, forbidden = toy(), 3, (0, 1, BOS)
    config = DecodeConfig(beam=64, nbest=4, max_length=longest)
    with torch.no_grad():
        state = model.start(collate(ITEMS[:count], PAD))
        found = beam_search(model.stepper(1.0, False), state, count, config, Marks(BOS, EOS, forbidden))
        for item, best in zip(ITEMS, found, strict=False):
            scored = []
            for length in range(longest + 1):
                for words in product((4, 5), repeat=length):
                    response = Item(item.context, item.floors, (BOS, *words, EOS))
                    scored.append((-float(model.nll(collate([response], PAD))), words))
            wanted = sorted(scored, reverse=True)[:4]
            ended = [hypothesis for hypothesis in best if hypothesis.finished]
            assert [h.tokens for h in ended] == [words for _, words in wanted][: len(ended)]
            assert [h.log_prob for h in ended] == pytest.approx([p for p, _ in wanted][: len(ended)])
            assert len(ended) >= 2


SETTINGS = (
    "data.context=2", "data.max_tokens=8", "data.segment=2", "model.embedding_size=8",
    "encoder.kind=transformer", "encoder.context_size=8", "decoder.kind=transformer",
    "decoder.hidden_size=8", "transformer.heads=2", "head.embedding_size=8", "optim.schedule=constant",
    "optim.warmup_steps=0", "model.dropout=0.2", "model.word_dropout=0.1", "train.batch_size=2",
    "train.validate_every=3", "train.checkpoint_every=3", "train.device=cpu",
)  # fmt: skip


@pytest.fixture
def corpus(in_tmp: Path) -> Path:
    said = ["is it raining", "yes it is", "take a coat then", "i will", "what time is it", "half past nine"]
    dialogs = ["\n".join(said[shift:] + said[:shift]) for shift in range(len(said))]
    (in_tmp / "talk.txt").write_text("\n\n".join(dialogs) + "\n")
    return in_tmp


def settings(*more: str) -> Any:
    data = [f"data.{split}=talk.txt" for split in ("train", "valid", "test")]
    return load_config("smalltalk_mos", DialogConfig, family="dialog", overrides=[*data, *SETTINGS, *more])


def test_a_resumed_training_has_the_bits_of_one_that_never_stopped(corpus: Path) -> None:
    train(settings("train.max_steps=6"), Path("whole"), no_report)
    for steps in (3, 6):
        train(settings(f"train.max_steps={steps}"), Path("parts"), no_report)
    hashes = [
        CheckpointStore(Path(run) / "checkpoints").open("last").state_sha256 for run in ("whole", "parts")
    ]
    assert hashes[0] == hashes[1]
    model = TrainedModel.load(Path("whole"))
    examples = list_examples(load_dialogs("talk.txt"), 2)[:3]
    alone = [model.respond([example], DecodeConfig(beam=3, nbest=2, max_length=4))[0] for example in examples]
    together = model.respond(examples, DecodeConfig(beam=3, nbest=2, max_length=4))
    assert [[h.tokens for h in found] for found in together] == [[h.tokens for h in found] for found in alone]
    said = model.codec.encode("yes it is")
    steps = model.token_probabilities(examples[0], said)
    assert [step.token for step in steps] == ["yes", "it", "is", "</s>"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('[decoder]\nkind = "transformer"\nattention = "dot"', r"attention belongs to recurrent decoders"),
        (
            '[decoder]\nkind = "transformer"\nhidden_size = 20',
            r"size of the decoder, 20: .*multiple of 8.*16 would",
        ),
        (
            '[encoder]\nkind = "transformer"\ncontext_size = 20',
            r"size of the encoder, 20: must be a multiple of 8",
        ),
        ("[transformer]\nheads = 2", r"transformer\.heads: has no effect"),
        (
            '[encoder]\nkind = "transformer"\n[decoder]\nkind = "transformer"\n[cell]\nweight_rank = 3',
            r"cell\.weight_rank: has no effect",
        ),
        (
            '[encoder]\nkind = "transformer"\n[decoder]\nkind = "transformer"\n[cell]\nrounds = 3',
            r"cell\.rounds belongs to the mogrifier; no part has cells",
        ),
        (
            '[encoder]\nkind = "transformer"\n[decoder]\ncell = "gru"\n[cell]\nrounds = 3',
            r"cell\.rounds belongs to the mogrifier; neither decoder\.cell = gru has it",
        ),
    ],
)
def test_keys_of_other_parts_are_refused(in_tmp: Path, settings: str, message: str) -> None:
    Path("bad.toml").write_text(f"{settings}\n")
    with pytest.raises(ConfigError, match=message) as error:
        load_config("bad.toml", DialogConfig, family="dialog")
    assert "bad.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_description_counts_every_parameter() -> None:
    found = describe(toy().config, V)
    model = toy()
    assert found["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert found["parameters_by_part"]["encoder"] == sum(p.numel() for p in model.encoder.parameters())
    assert found["memory"]["activations"] > 0
