"""Dialog models on a pretrained encoder-decoder: the encoder reads the context, the decoder the response."""

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from dialog.batches import Batch
from dialog.cli import main
from dialog.config import DialogConfig
from dialog.corpora.corpus import load_dialogs, train_codec
from dialog.pretrained import start_dialog
from dialog.seq2seq import Seq2Seq
from dialog.task import build_model, encode_dialogs
from dialog.train import train
from lm.config.load import load_config
from lm.engine.events import no_report
from lm.runs.checkpoint import CheckpointStore
from lm.text.vocabulary import Codec
from tests.dialog.test_causal import CONFIG
from tests.support.pretrained import save_model, save_tokenizer, tiny_pairs
from tests.support.tiny_dialog import SAID, write_corpus

SPECIAL = {"t5": ("</s>", "<unk>", "<pad>"), "bart": ("</s>", "<s>", "<pad>", "<unk>")}
KINDS = ("t5", "t5 1.1", "bart", "scaled bart")
MIXTURES = [f"head.kind={kind}" for kind in ("moc", "mos", "mixtape")]
HEADS: list[list[str]] = [
    ["head.kind=softmax", "head.components=1", "head.context_activation=tanh"],
    *([kind] for kind in MIXTURES),
    ["head.kind=moss", "head.learn_shift=true"],
    ["head.kind=doc", "head.components=4", "head.lower_components=[1,1]", "head.prior_bias=true"],
]


def save(folder: Path, kind: str = "t5") -> Any:
    """A model and its tokenizer; BART's has ``<s>`` and 128 positions."""
    text = "\n".join(SAID) * 3
    words = save_tokenizer(folder, text, special=SPECIAL["bart" if "bart" in kind else "t5"]) + 5
    config = tiny_pairs(words)[kind]
    if "bart" in kind:
        config.max_position_embeddings = 128
    return save_model(folder, config)


@pytest.fixture
def corpus(in_tmp: Path) -> Path:
    write_corpus(in_tmp)
    save(in_tmp / "folder")
    (in_tmp / "run.toml").write_text(CONFIG, "utf-8")
    return in_tmp


def config(*overrides: str) -> DialogConfig:
    return load_config("run.toml", DialogConfig, family="dialog", overrides=overrides).config


def codec_here() -> Codec:
    return train_codec(load_dialogs("talk.jsonl"), "wordpunct", vocab_size=0, pretrained=Path("folder"))


def model_of(settings: DialogConfig, codec: Codec) -> Seq2Seq:
    model = build_model(settings, codec)
    start_dialog(settings, model.embedding, model.decoder, model.head)
    return model.eval()


def batch_of(settings: DialogConfig, codec: Codec, chosen: range = range(4)) -> Batch:
    data = encode_dialogs(load_dialogs("talk.jsonl"), codec, settings)
    return data.batch(chosen, codec.vocabulary.pad)


def theirs_nll(theirs: Any, model: Seq2Seq, batch: Batch, row: int) -> float:
    """−log P of the response of a row by transformers, whose texts are made here token by token."""
    bos, start = int(batch.utterances[0, 0]), theirs.config.decoder_start_token_id
    own = bos < theirs.config.vocab_size
    said = [
        batch.utterances[number][1 : batch.utterance_lengths[number]].tolist()
        for number in batch.context[row, : batch.context_lengths[row]].tolist()
    ]
    context = torch.tensor([bos] * own + [token for one in said for token in one])
    response = batch.targets[row, : batch.lengths[row]]
    read = torch.tensor([start] + [bos] * own + response.tolist()[:-1])
    logits = theirs(
        inputs_embeds=model.embedding(context)[None], decoder_inputs_embeds=model.embedding(read)[None]
    ).logits[0, -len(response) :]
    return float(torch.nn.functional.cross_entropy(logits, response, reduction="sum"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_head_begins_with_the_probabilities_of_the_pretrained_model(corpus: Path, kind: str) -> None:
    """Before the first update, for contexts of different lengths in one batch, alone, and step by step."""
    theirs, codec = save(corpus / "folder", kind), codec_here()
    for head in HEADS if kind in ("t5", "bart") else HEADS[:1]:
        settings = config(*head)
        model, batch = model_of(settings, codec), batch_of(settings, codec)
        assert len(set(batch.context_lengths.tolist())) > 2
        with torch.no_grad():
            ours = model.nll(batch)
            for row, item in enumerate(batch.order.tolist()):
                expected = pytest.approx(theirs_nll(theirs, model, batch, row), rel=1e-5)
                assert float(ours[item]) == expected, (head, row)
                alone = batch_of(settings, codec, range(item, item + 1))
                assert float(model.nll(alone)[0]) == pytest.approx(float(ours[item]), rel=1e-6)
            state, total = model.start(batch).select(torch.tensor([3, 3])), torch.zeros(2)
            said = encode_dialogs(load_dialogs("talk.jsonl"), codec, settings).items[3].response
            for before, after in pairwise(said):
                log_probs, state = model.step(torch.tensor([before, before]), state)
                total -= log_probs[:, after]
                state = state.select(torch.tensor([1, 0]))
            assert float(total[0]) == pytest.approx(float(ours[3]), rel=1e-5)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_a_run_resumes_without_the_folder_and_answers(
    corpus: Path, ending: Callable[..., tuple[int, str, str]], kind: str
) -> None:
    """Bit for bit, also with recomputed activations; the first validation is the pretrained model's."""
    save(corpus / "folder", kind)
    train(load_config("run.toml", DialogConfig, family="dialog"), Path("whole"), no_report)
    for steps in (3, 6):
        changes = [f"train.max_steps={steps}", "model.recompute=true"]
        train(
            load_config("run.toml", DialogConfig, family="dialog", overrides=changes), Path("cut"), no_report
        )
        shutil.rmtree("folder", ignore_errors=True)
    weights = [CheckpointStore(Path(run, "checkpoints")).weights("last") for run in ("whole", "cut")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert ending(main, "evaluate", "cut", "--json", "result.json")[0] == 0
    assert ending(main, "evaluate", "cut", "--set", "decode.method=sample")[0] == 0
