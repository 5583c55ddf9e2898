"""Dialog models on a pretrained causal network: the turns are one stream, the loss is on the response."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from dialog.batches import list_examples
from dialog.causal import stream
from dialog.cli import main
from dialog.corpora.corpus import load_dialogs
from dialog.task import encode_dialogs
from dialog.trained import TrainedModel
from lm.errors import DataError
from lm.text.tokenizers import EOS
from lm.text.vocabulary import Codec
from tests.support.pretrained import save_model, save_tokenizer, tiny_configs
from tests.support.pretrained_dialog import (
    assert_resumes_without_the_folder,
    codec_here,
    config,
    model_of,
    write_talk,
)
from tests.support.tiny_dialog import SAID

PAGE = Path(__file__).parents[2] / "docs" / "huggingface.md"
HEADS = [
    (),
    ("head.kind=doc", "head.components=3", "head.lower_components=[1]", "head.prior_bias=true"),
]


def save(folder: Path, kind: str = "gpt2") -> Any:
    """A model of 128 positions and its tokenizer."""
    words = save_tokenizer(folder, "\n".join(SAID) * 3)
    config = tiny_configs(words)[kind]
    config.max_position_embeddings = 128
    return save_model(folder, config)


@pytest.fixture
def corpus(in_tmp: Path) -> Path:
    save(in_tmp / "folder")
    return write_talk(in_tmp)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2"])
def test_responses_have_the_probabilities_of_the_pretrained_model(corpus: Path, kind: str) -> None:
    """Before the first update, for contexts of different lengths in one batch, at once and step by step."""
    theirs, codec = save(corpus / "folder", kind), codec_here()
    for head in HEADS:
        settings = config(*head)
        model = model_of(settings, codec)
        data = encode_dialogs(load_dialogs("talk.jsonl"), codec, settings)
        batch = data.batch(range(4))
        with torch.no_grad():
            ours, (tokens, _, kept) = model.nll(batch), stream(batch)
            assert len({int(row.sum()) for row in kept}) > 2
            for row, item in enumerate(batch.order.tolist()):
                said = batch.targets[row, : batch.lengths[row]]
                read = torch.cat((tokens[row][kept[row]], batch.inputs[row, : batch.lengths[row]]))
                logits = theirs(inputs_embeds=model.embedding(read)[None]).logits[0, -len(said) :]
                expected = torch.nn.functional.cross_entropy(logits, said, reduction="sum")
                assert float(ours[item]) == pytest.approx(float(expected), rel=1e-5), (head, row)
            state, total = model.start(batch).select(torch.tensor([3, 1])), torch.zeros(2)
            for before, after in zip(data.items[3].response, data.items[3].response[1:], strict=False):
                log_probs, state = model.step(torch.tensor([before, before]), state)
                total -= log_probs[:, after]
            assert float(total[0]) == pytest.approx(float(ours[3]), rel=1e-5)


def test_a_reply_beyond_the_room_of_the_trunk_is_refused_before_the_context_is_forgotten(
    corpus: Path,
) -> None:
    settings = config()
    codec = codec_here()
    model = model_of(settings, codec)
    trained = TrainedModel(settings, codec, model, torch.device("cpu"))
    examples = list_examples(load_dialogs("talk.jsonl"))[:1]
    with torch.no_grad():
        model.head.bias[codec.vocabulary.ids([EOS])] -= 1e4  # no reply ends by itself
    within = settings.decode.model_copy(update={"max_length": settings.data.max_response - 2})
    assert trained.respond(examples, within)
    beyond = settings.decode.model_copy(update={"max_length": 400})
    with pytest.raises(DataError, match="context and response have more than 104 tokens"):
        trained.respond(examples, beyond)


def test_a_run_resumes_without_the_folder_and_answers(
    corpus: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    assert_resumes_without_the_folder(ending)
    assert ending(main, "export", "cut", "out")[0] == 0


def test_pieces_and_marks_have_their_ids(corpus: Path) -> None:
    codec = codec_here()
    vocabulary = codec.vocabulary
    assert vocabulary.framed
    assert vocabulary.tokens[vocabulary.eos] == "</s>"
    assert vocabulary.eos == 0  # of the tokenizer's <|endoftext|>
    assert {vocabulary.pad, vocabulary.bos, vocabulary.unk} == {
        index for index, name in enumerate(vocabulary.tokens) if name in ("<pad>", "<s>", "<unk>")
    }
    assert codec.encode("<d>") == vocabulary.ids(["<d>"])
    for text in ("is it raining", "Zürich — naïve", " a  b"):
        assert codec.decode([vocabulary.bos, *codec.encode(text), vocabulary.eos]) == text
    assert vocabulary.unk in codec.encode("bye <|endoftext|>")
    codec.save(corpus)
    assert Codec.load(corpus).fingerprint == codec.fingerprint
    assert Codec.load(corpus).vocabulary.framed


def test_the_example_of_the_page_trains(corpus: Path, ending: Callable[..., tuple[int, str, str]]) -> None:
    (settings,) = re.findall(r"`talk.toml`:\n\n```toml\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    (corpus / "talk.toml").write_text(settings, "utf-8")
    changes = [f"data.{split}=talk.jsonl" for split in ("train", "valid", "test")]
    changes += ["model.trunk=hf:folder", "data.context=2", "train.max_steps=1"]
    options = [text for change in changes for text in ("--set", change)]
    code, _, error = ending(main, "train", "talk.toml", "--run", "run", *options)
    assert code == 0, error


UNFIT = [
    ("model.trunk=", "needs a pretrained trunk"),
    ("model.trunk=hf", "must be hf:FOLDER"),
    ("data.tokenizer=char", 'data.tokenizer = "hf"'),
    ("data.lowercase=true", "data.lowercase = false"),
    ("data.max_response=9", "data.max_response = 10"),
    ("data.vocab_size=50", "data.vocab_size"),
    ("data.context=9", "lower data.context"),
    ("decoder.layers=2", "decoder.layers: has no effect"),
    ("model.embedding_size=9", "--set model.embedding_size: belongs to"),
    ("head.context_activation=tanh", "set head.context_activation = none"),
    ("head.output_bias=false", "set head.output_bias = true"),
]


def test_settings_that_do_not_fit_the_trunk_are_refused(
    corpus: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    for change, said in UNFIT:
        code, _, error = ending(main, "train", "run.toml", "--run", "run", "--set", change)
        lines = [line for line in error.splitlines() if not line.startswith("warning")]
        assert (code, len(lines)) == (2, 1), (change, error)
        assert said in error, (change, error)
