"""Exported dialog models: what transformers opens, its beams, and the way back."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from dialog.batches import Example, ExampleEncoder, collate, next_example
from dialog.cli import main
from dialog.config import DialogConfig
from dialog.decoding.config import DecodeConfig
from dialog.export import export_run, import_run
from dialog.hf import HighrankDialogModel
from dialog.task import build_model
from dialog.trained import TrainedModel
from dialog.utterance import Utterance
from lm.cli import main as lm_main
from lm.config.load import Resolved
from lm.huggingface.run_files import write_run
from lm.runs.overview import run_row
from lm.text.tokenizers import DIALOG
from lm.text.vocabulary import build_codec
from tests.support.tiny_dialog import train_dialog, write_corpus

TEXTS = [
    "well i think we saw that film",
    "oh yeah it was long , was n't it",
    "right uh-huh",
    "is it raining now",
]
TALKS = [
    ["right"],
    ["is it raining now", "uh-huh"],
    ["well", "it was long", "oh yeah"],
    ["was n't it long , that film we saw now", "right", "uh-huh", "well , i think it was", "oh"],
    ["oh", "", "it was n't zürich"],
    ["well i think we saw"],
]
ATTENTIVE = {"attention": "additive", "feed_context": True}
PARTS: dict[str, dict[str, Any]] = {
    "recurrent": {"decoder": {"cell": "mogrifier", "hidden_size": 8, "layers": 2}, "cell": {"rank": 2}},
    "flat": {
        "encoder": {"kind": "flat", "cell": "gru", "context_size": 8},
        "decoder": {"cell": "gru", "hidden_size": 8, **ATTENTIVE},
        "head": {"kind": "moss", "components": 2, "embedding_size": 8, "tied": True},
    },
    "transformer": {
        "encoder": {"kind": "transformer", "context_size": 8, "layers": 2},
        "decoder": {"kind": "transformer", "hidden_size": 12, "layers": 2},
        "transformer": {"heads": 2, "kv_heads": 1},
        "head": {"kind": "doc", "components": 3, "lower_components": [1], "embedding_size": 8},
    },
    "source": {
        "encoder": {"kind": "hierarchical", "utterance_size": 5, "context_size": 8},
        "decoder": {"hidden_size": 8, "attention": "dot"},
        "head": {"kind": "cpr", "candidates": [2, 5], "source": "pointer", "embedding_size": 8},
    },
    "mixed": {
        "encoder": {"kind": "transformer", "context_size": 8},
        "decoder": {"hidden_size": 8, **ATTENTIVE},
        "transformer": {"heads": 2},
    },
}


def write(folder: Path, kind: str, towards_end: float = 0.0, **sections: Any) -> Path:
    """A run with random weights."""
    base = {
        "data": {"context": 3, "max_tokens": 7},
        "model": {"embedding_size": 8, "init_range": 1.5},
        "encoder": {"utterance_size": 6, "context_size": 8},
        "head": {"kind": "mos", "components": 3, "embedding_size": 8, "context_scale": 5},
    }
    config = DialogConfig.model_validate(base | PARTS[kind] | sections)
    codec = build_codec("wordpunct", TEXTS, vocab_size=60, extra_counts={"<s>": 3, "</s>": 3, DIALOG: 1})
    torch.manual_seed(2)
    model = build_model(config, codec)
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter *= 2
        assert model.head.bias is not None
        model.head.bias[codec.vocabulary.eos] += towards_end
    write_run(folder, Resolved(config, {}), codec, model)
    return folder


def exported(folder: Path, run: Path) -> tuple[TrainedModel, Any, Any]:
    """A run, its exported model, and its tokenizer."""
    export_run(run, folder / "exported")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "exported").eval()
    assert isinstance(model, HighrankDialogModel)
    return TrainedModel.load(run), model, AutoTokenizer.from_pretrained(folder / "exported")


def examples(talks: Sequence[Sequence[str]], context: int) -> list[Example]:
    """Speakers take turns, and the model answers."""
    spoken = ([Utterance("BA"[(len(talk) - i) % 2], text) for i, text in enumerate(talk)] for talk in talks)
    return [next_example(said, "B", context) for said in spoken]


def read(tokenizer: Any, talks: Sequence[Sequence[str]]) -> dict[str, torch.Tensor]:
    joined = ["".join(f"<s>{text}</s>" for text in talk) for talk in talks]
    batch = tokenizer(joined, padding=True, add_special_tokens=False, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def said(rows: torch.Tensor, eos: int) -> list[tuple[int, ...]]:
    return [tuple(row[1 : row.index(eos)]) for row in rows.tolist()]


@pytest.mark.parametrize("towards_end", [-30.0, 4.0])
@pytest.mark.parametrize("kind", PARTS)
def test_beams_of_generate_find_what_ours_finds(tmp_path: Path, kind: str, towards_end: float) -> None:
    """Where all reach full length, and where all end by </s>. Some contexts are too long."""
    trained, model, tokenizer = exported(tmp_path, write(tmp_path / "run", kind, towards_end))
    config = DecodeConfig(beam=4, nbest=2, max_length=9, min_length=3)
    ours = [one for found in trained.respond(examples(TALKS, 3), config) for one in found]
    assert {one.finished for one in ours} == {towards_end > 0}
    assert len({one.tokens for one in ours}) > len(TALKS)
    theirs = model.generate(
        **read(tokenizer, TALKS), num_beams=4, num_return_sequences=2, max_new_tokens=10, min_new_tokens=3,
        length_penalty=0.0, early_stopping="never",
    )  # fmt: skip
    assert said(theirs, trained.marks.eos) == [one.tokens for one in ours]


@pytest.mark.parametrize("kind", PARTS)
def test_losses_are_those_of_the_run_and_the_way_back_is_exact(tmp_path: Path, kind: str) -> None:
    trained, model, tokenizer = exported(tmp_path, write(tmp_path / "run", kind))
    answers = ["it was", "", "well i think it was n't"]
    labels = tokenizer(answers, padding=True, return_tensors="pt")["input_ids"]
    encoder = ExampleEncoder(trained.codec, 7)
    answered = [
        replace(example, response=Utterance("B", answer))
        for example, answer in zip(examples(TALKS[:3], 3), answers, strict=True)
    ]
    items = [encoder.item(example) for example in answered]
    with torch.no_grad():
        loss = model(**read(tokenizer, TALKS[:3]), labels=labels).loss
        nll = trained.model.nll(collate(items, trained.codec.vocabulary.pad))
        ignored = torch.cat((labels, torch.full_like(labels[:1], -100)))
        filled = model(**read(tokenizer, [*TALKS[:3], TALKS[0]]), labels=ignored).loss
        nothing = model(**read(tokenizer, TALKS[:3]), labels=torch.full_like(labels, -100)).loss
    assert float(loss) == pytest.approx(
        float(nll.sum()) / sum(len(item.response) - 1 for item in items), rel=1e-5
    )
    assert (float(filled), float(nothing)) == (pytest.approx(float(loss), rel=1e-5), 0.0)
    import_run(tmp_path / "exported", tmp_path / "back")
    assert run_row(tmp_path / "back")["state"] == "imported"
    ours, back = (TrainedModel.load(tmp_path / name).model.state_dict() for name in ("run", "back"))
    assert back.keys() == ours.keys()
    assert all(torch.equal(back[name], ours[name]) for name in ours)


def test_a_call_that_lacks_an_input_says_which(tmp_path: Path) -> None:
    _, model, tokenizer = exported(tmp_path, write(tmp_path / "run", "recurrent"))
    inputs = read(tokenizer, TALKS[:1])
    encoded = model.get_encoder()(**inputs)
    with pytest.raises(ValueError, match="labels need input_ids"):
        model(encoder_outputs=encoded, labels=inputs["input_ids"])
    with pytest.raises(ValueError, match="give decoder_input_ids for logits, or input_ids with labels"):
        model(encoder_outputs=encoded)
    with pytest.raises(ValueError, match="give input_ids, the contexts"):
        model(decoder_input_ids=inputs["input_ids"])


def test_speakers_need_not_take_turns(tmp_path: Path) -> None:
    trained, model, tokenizer = exported(tmp_path, write(tmp_path / "run", "recurrent", -30.0))
    talk = [Utterance(speaker, text) for speaker, text in zip("BBA", TEXTS, strict=False)]
    config = DecodeConfig(beam=3, nbest=1, max_length=6)
    ((ours,),) = trained.respond([next_example(talk, "B", 3)], config)
    batch = read(tokenizer, [[one.text for one in talk]])
    starts = (batch["input_ids"] == trained.marks.bos).cumsum(1)
    kinds = (starts < 3).long()  # the first two utterances are the model's
    rules = {"num_beams": 3, "max_new_tokens": 7, "length_penalty": 0.0, "early_stopping": "never"}
    assert said(model.generate(**batch, token_type_ids=kinds, **rules), trained.marks.eos) == [ours.tokens]
    assert said(model.generate(**batch, **rules), trained.marks.eos) != [ours.tokens]


@pytest.mark.parametrize(
    "decode",
    [{"beam": 4, "no_repeat_ngram": 2}, {"beam": 1, "min_length": 2}, {"beam": 3, "length_penalty": 0.7}],
)
def test_the_folder_has_the_run_s_own_decoding(tmp_path: Path, decode: dict[str, Any]) -> None:
    """And a chat template, which builds the context of a conversation."""
    settings = {"max_length": 6, "nbest": 1, **decode}
    run = write(tmp_path / "run", "transformer", 2.0, decode=settings)
    trained, model, tokenizer = exported(tmp_path, run)
    for talk in TALKS:
        turns = [
            {"role": "user" if place % 2 else "assistant", "content": text} for place, text in enumerate(talk)
        ]
        turns.insert(0, {"role": "system", "content": "be brief"})  # which the corpora do not have
        batch = tokenizer.apply_chat_template(turns, return_dict=True, return_tensors="pt")
        ((ours,),) = trained.respond(examples([talk], 3), trained.config.decode)
        assert said(model.generate(**batch), trained.marks.eos) == [ours.tokens]


def test_a_sampled_token_has_the_probability_of_the_run(tmp_path: Path) -> None:
    trained, model, tokenizer = exported(
        tmp_path, write(tmp_path / "run", "flat", decode={"method": "sample"})
    )
    torch.manual_seed(1)
    found = model.generate(
        **read(tokenizer, TALKS[2:3]), max_new_tokens=8, output_logits=True, return_dict_in_generate=True
    )
    (tokens,) = said(found.sequences, trained.marks.eos)
    steps = trained.token_probabilities(examples(TALKS[2:3], 3)[0], tokens)
    logits = torch.stack(found.logits)[:, 0].gather(1, found.sequences[0, 1:, None])[:, 0]
    assert logits.exp().tolist() == pytest.approx([step.prob for step in steps], rel=1e-4)


def test_the_commands_write_a_folder_and_a_run(
    tmp_path: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    run, out, back = (
        train_dialog(write_corpus(tmp_path), tmp_path / "run"),
        tmp_path / "out",
        tmp_path / "back",
    )
    assert ending(main, "evaluate", str(run), "--set", "decode.beam=2")[0] == 0
    assert ending(main, "export", str(run), str(out), "--license", "mit")[0] == 0
    card = (out / "README.md").read_text()
    assert f"| `dialog evaluate {run} --set decode.beam=2` |" in card
    assert "AutoModelForSeq2SeqLM" in card
    assert json.loads((out / "config.json").read_text())["model_type"] == "highrank_dialog"
    assert ending(main, "import", str(out), "--run", str(back))[0] == 0
    results = []
    for folder in (run, back):
        assert ending(main, "evaluate", str(folder), "--json", str(tmp_path / "found.json"))[0] == 0
        results.append(json.loads((tmp_path / "found.json").read_text())["nll"])
    assert results[0] == results[1]
    code, _, told = ending(lm_main, "import", str(out), "--run", str(tmp_path / "other"))
    assert (code, told.count("\n")) == (4, 1)
    assert "use `dialog`" in told
