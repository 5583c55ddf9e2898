"""Dialog models on a pretrained encoder-decoder: the encoder reads the context, the decoder the response."""

import re
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

pytest.importorskip("transformers")

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from dialog.batches import Batch, next_example
from dialog.cli import main
from dialog.config import DialogConfig
from dialog.corpora.corpus import load_dialogs
from dialog.decoding.config import DecodeConfig
from dialog.export import export_run, import_run
from dialog.seq2seq import Seq2Seq
from dialog.task import encode_dialogs
from dialog.train import train
from dialog.trained import TrainedModel
from dialog.utterance import Utterance
from lm.config.load import load_config
from lm.engine.events import no_report
from lm.errors import DataError
from lm.runs.checkpoint import CheckpointStore
from lm.text.vocabulary import Codec
from tests.support.pretrained import edit, save_model, save_tokenizer, tiny_pairs
from tests.support.pretrained_dialog import (
    assert_resumes_without_the_folder,
    codec_here,
    config,
    model_of,
    write_talk,
)
from tests.support.tiny_dialog import SAID

PAGE = Path(__file__).parents[2] / "docs" / "huggingface.md"
SPECIAL = {"t5": ("</s>", "<unk>", "<pad>"), "bart": ("</s>", "<s>", "<pad>", "<unk>")}
KINDS = ("t5", "t5 1.1", "bart", "scaled bart")
MIXTURES = [f"head.kind={kind}" for kind in ("moc", "mos", "mixtape")]
SOFTMAX = ["head.kind=softmax", "head.components=1", "head.context_activation=tanh"]
HEADS: list[list[str]] = [
    SOFTMAX,
    [*SOFTMAX, "head.tied=true"],
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
    save(in_tmp / "folder")
    return write_talk(in_tmp)


def batch_of(settings: DialogConfig, codec: Codec, chosen: range = range(4)) -> Batch:
    data = encode_dialogs(load_dialogs("talk.jsonl"), codec, settings)
    return data.batch(chosen)


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
    for head in {"t5": HEADS, "bart": (HEADS[0], HEADS[-1])}.get(kind, HEADS[:1]):
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


@pytest.mark.parametrize(("kind", "least"), [("t5", 9), ("bart", 0)])
def test_beams_of_generate_find_what_ours_finds(corpus: Path, kind: str, least: int) -> None:
    """Where all reach full length, and where all end by </s>, after contexts of different lengths.

    Without its cache, which has as many layers as the encoder.
    """
    theirs, codec, settings = save(corpus / "folder", kind), codec_here(), config(*SOFTMAX)
    if kind == "bart":
        theirs.final_logits_bias[0, 0] += 6
    model = model_of(settings, codec)
    with torch.no_grad():
        model.head.bias[0] += 6 * (kind == "bart")
    trained = TrainedModel(settings, codec, model, torch.device("cpu"))
    talks = [SAID[:3], SAID[2:5], SAID[1:4]]
    examples = [next_example([Utterance("A", text) for text in talk], "B", 3) for talk in talks]
    decode = DecodeConfig(beam=4, nbest=2, min_length=least, max_length=9, products="float32")
    ours = [one for found in trained.respond(examples, decode) for one in found]
    assert {one.finished for one in ours} == {not least}
    texts = [[token for text in talk for token in [*codec.encode(text), 0]] for talk in talks]
    begin = [codec.vocabulary.bos] if kind == "bart" else []
    inputs = torch.nn.utils.rnn.pad_sequence([torch.tensor(begin + text) for text in texts], True, 2)
    first = torch.tensor([[theirs.config.decoder_start_token_id, *begin]] * len(talks))
    found = theirs.generate(
        input_ids=inputs, attention_mask=(inputs != 2).long(), decoder_input_ids=first, num_beams=4,
        num_return_sequences=2, max_new_tokens=10, min_new_tokens=least, forced_eos_token_id=0,
        suppress_tokens=[2, *begin], length_penalty=0.0, early_stopping="never", use_cache=False,
    )  # fmt: skip
    rows = [row[first.shape[1] :] for row in found.tolist()]
    assert [tuple(row[: row.index(0)]) for row in rows] == [one.tokens for one in ours]


@pytest.mark.parametrize("place", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_a_forced_first_token_is_read_before_every_response(corpus: Path, kind: str, place: str) -> None:
    """As ``generate`` does, wherever the folder names it."""
    forced, theirs = 9, save(corpus / "folder", kind)
    edit(corpus / "folder" / place, forced_bos_token_id=forced)
    settings, codec = config(*SOFTMAX), codec_here()
    model, batch = model_of(settings, codec), batch_of(settings, codec)
    assert model.start(batch).prompt.shape[1] == 2
    trained = TrainedModel(settings, codec, model, torch.device("cpu"))
    example = next_example([Utterance("A", text) for text in SAID[:3]], "B", 3)
    decode = DecodeConfig(beam=1, nbest=1, min_length=6, max_length=6, products="float32")
    ((ours, *_),) = trained.respond([example], decode)
    begin = [codec.vocabulary.bos] if kind == "bart" else []
    context = [*begin, *(token for text in SAID[:3] for token in [*codec.encode(text), 0])]
    found = theirs.generate(
        input_ids=torch.tensor([context]), forced_bos_token_id=forced, forced_eos_token_id=0,
        max_new_tokens=8, min_new_tokens=7, suppress_tokens=[2, *begin], num_beams=1, do_sample=False,
        use_cache=False,
    )  # fmt: skip
    assert tuple(found[0, 1:8].tolist()) == (forced, *ours.tokens)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_a_run_resumes_without_the_folder_and_answers(
    corpus: Path, ending: Callable[..., tuple[int, str, str]], kind: str
) -> None:
    save(corpus / "folder", kind)
    assert_resumes_without_the_folder(ending)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_an_exported_run_has_our_beams_and_losses_and_comes_back(corpus: Path, kind: str) -> None:
    """Where nothing else is left, for contexts together that the export pads and cuts."""
    save(corpus / "folder", kind)
    changes = ["train.max_steps=2", "decode.min_length=8"]
    train(load_config("run.toml", DialogConfig, family="dialog", overrides=changes), Path("run"), no_report)
    shutil.rmtree("folder")
    export_run(Path("run"), Path("exported"))
    trained = TrainedModel.load(Path("run"))
    Path("run").rename("gone")
    model, tokenizer = (kind.from_pretrained("exported") for kind in (AutoModelForSeq2SeqLM, AutoTokenizer))
    talks = [SAID[:1], SAID[:2], SAID]
    spoken = [[Utterance("BA"[(len(talk) - i) % 2], text) for i, text in enumerate(talk)] for talk in talks]
    examples = [next_example(said, "B", 3) for said in spoken]
    ours = [found[0].tokens for found in trained.respond(examples, trained.config.decode)]
    told = [[{"role": "user", "content": text} for text in talk] for talk in talks]
    read = tokenizer.apply_chat_template(told, padding=True, return_dict=True, return_tensors="pt")
    read.pop("token_type_ids", None)
    assert [tuple(row[1 : 1 + 8]) for row in model.generate(**read).tolist()] == ours
    dialogs = load_dialogs("talk.jsonl")[:1]
    (first, *_), score = encode_dialogs(dialogs, trained.codec, trained.config).items, trained.nll(dialogs)
    context = torch.tensor([[token for utterance in first.context for token in utterance]])
    with torch.no_grad():
        loss = model.eval()(input_ids=context, labels=torch.tensor([first.response[1:]])).loss
    assert float(loss) * (len(first.response) - 1) == pytest.approx(score[0].nll, rel=1e-5)
    import_run(Path("exported"), Path("back"))
    assert TrainedModel.load(Path("back")).nll(dialogs) == score


def test_a_head_alone_trains(corpus: Path) -> None:
    resolved = load_config(
        "run.toml",
        DialogConfig,
        family="dialog",
        overrides=["train.freeze=trunk", "optim.trunk_lr_ratio=1", "train.max_steps=2"],
    )
    train(resolved, Path("run"), no_report)
    began = model_of(resolved.config, codec_here()).state_dict()
    for name, value in CheckpointStore(Path("run", "checkpoints")).weights("last").items():
        assert torch.equal(value, began[name]) != name.startswith("head."), name


def test_recomputed_activations_are_not_kept(corpus: Path) -> None:
    """Far fewer bytes wait for the backward pass, and the gradients are the same."""
    kept, gradients = [], []
    codec = codec_here()
    for recompute in ("false", "true"):
        settings = config(*HEADS[-1], f"model.recompute={recompute}", "model.dropout=0")
        torch.manual_seed(2)  # of the noise of the components, and of the dropout inside the networks
        model, sizes = model_of(settings, codec).train(), list[int]()
        with saved_tensors_hooks(lambda one, sizes=sizes: sizes.append(one.nbytes) or one, lambda one: one):
            hidden, targets, _ = model.hidden(batch_of(settings, codec))
        kept.append(sum(sizes))
        model.head.objective(hidden, targets)[0].backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert kept[1] < kept[0] / 2
    assert all(torch.equal(one, two) for one, two in zip(*gradients, strict=True))


def test_texts_beyond_the_positions_are_refused(
    corpus: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    """Before training by the settings, and in decoding. T5 has no positions to exceed."""
    long = ("--set", "data.context=9", "--set", "train.max_steps=1")
    assert ending(main, "train", "run.toml", "--run", "t5", *long)[0] == 0
    save(corpus / "folder", "bart")
    code, _, error = ending(main, "train", "run.toml", "--run", "run", *long)
    assert (code, len(lines_of(error))) == (2, 1)
    assert "reads at most 128; lower data.context" in error
    settings, codec = config(), codec_here()
    trained = TrainedModel(settings, codec, model_of(settings, codec), torch.device("cpu"))
    example = next_example([Utterance("A", SAID[0])], "B", 3)
    with pytest.raises(DataError, match="more than the 128 tokens"):
        trained.respond([example], DecodeConfig(min_length=150, max_length=150))


def lines_of(error: str) -> list[str]:
    """Lines except the warnings that all splits are one file."""
    return [line for line in error.splitlines() if not line.startswith("warning")]


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def change(**values: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "config.json", **values)


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "no weights": (remove("model.safetensors"), "no model.safetensors"),
    "no tokenizer": (remove("tokenizer.json"), "tokenizer.json: missing"),
    "code": (change(auto_map={"AutoModelForSeq2SeqLM": "own.Own"}), "never run"),
    "unknown kind": (change(model_type="nonsense"), "no causal language model"),
    "kind without decoder": (change(model_type="gpt2"), "no encoder-decoder of texts"),
    "no first token": (change(decoder_start_token_id=None), "decoder_start_token_id = None: must be the id"),
    "far forced token": (change(forced_bos_token_id=10**6), "forced_bos_token_id = 1000000"),
    "far first token": (change(decoder_start_token_id=10**6), "decoder_start_token_id = 1000000"),
    "too many layers": (change(num_decoder_layers=10**9), "num_decoder_layers = 1000000000"),
    "fewer layers": (change(d_ff=25), "are not those of its config.json"),
}


def test_a_bad_folder_gets_one_line_with_the_remedy(
    corpus: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    shutil.copytree("folder", "whole")
    for name, (damage, said) in BAD.items():
        shutil.rmtree("folder", ignore_errors=True)
        shutil.copytree("whole", "folder")
        damage(Path("folder"))
        code, _, error = ending(main, "train", "run.toml", "--run", "run")
        assert (code, len(lines_of(error))) == (4, 1), (name, error)
        assert said in error, (name, error)
        assert not Path("run", "checkpoints").exists()


def test_the_example_of_the_page_trains_on_it(
    corpus: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    (settings,) = re.findall(r"`talk.toml`:\n\n```toml\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    (corpus / "talk.toml").write_text(settings, "utf-8")
    changes = [f"data.{split}=talk.jsonl" for split in ("train", "valid", "test")]
    changes += ["model.trunk=hf:folder", "train.max_steps=1"]
    options = [text for change in changes for text in ("--set", change)]
    code, _, error = ending(main, "train", "talk.toml", "--run", "run", *options)
    assert code == 0, error
    assert ending(main, "describe", "talk.toml", *options)[0] == 0


def test_a_chat_template_changes_nothing(corpus: Path) -> None:
    """It makes one stream of a conversation, which an encoder-decoder does not read."""
    template = "{% for one in messages %}{{ one['content'] }}</s>{% endfor %}"
    edit(Path("folder", "tokenizer_config.json"), chat_template=template)
    resolved = load_config("run.toml", DialogConfig, family="dialog", overrides=["train.max_steps=1"])
    train(resolved, Path("run"), no_report)
    assert Codec.load(Path("run")).fingerprint == codec_here().fingerprint
