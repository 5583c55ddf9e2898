"""Exported dialog models on pretrained causal networks: what transformers opens, its beams, the way back."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM, AutoTokenizer

from dialog.batches import Item, next_example
from dialog.config import DialogConfig
from dialog.export import export_run, import_run
from dialog.hf_causal import HighrankStreamModel
from dialog.task import encode_dialogs
from dialog.train import train
from dialog.trained import TrainedModel
from dialog.utterance import Dialog, Utterance
from lm.config.load import load_config
from lm.engine.events import no_report
from tests.support.chat_templates import TEMPLATES, folder_with
from tests.support.pretrained_dialog import CONFIG
from tests.support.tiny_dialog import SAID, write_corpus

TALKS = [SAID[:1], SAID[:2], SAID[:4], ["bye", "yes", "is it raining", "take a coat then", "bye"]]


def trained_run(folder: Path, template: str) -> None:
    """Train a run on a pretrained folder, which is then gone; "" = without a template."""
    folder_with(folder / "folder", TEMPLATES.get(template, ""), "llama" if template else "gpt2")
    write_corpus(folder)
    (folder / "run.toml").write_text(CONFIG, "utf-8")
    changes = ["optim.lr=0.03", "data.context=4", "data.max_tokens=25"]
    changes.append(f"data.chat_template={str(bool(template)).lower()}")
    train(load_config("run.toml", DialogConfig, family="dialog", overrides=changes), Path("run"), no_report)
    shutil.rmtree("folder")


def messages(talk: Sequence[str], template: str) -> list[dict[str, str]]:
    """A talk that the model answers; templates begin with the user."""
    roles = [("user", "assistant")[(len(talk) - place) % 2] for place in range(1, len(talk) + 1)]
    found = [{"role": role, "content": text} for role, text in zip(roles, talk, strict=True)]
    return [{"role": "user", "content": ""}, *found] if template and roles[0] != "user" else found


def whole(item: Item) -> list[int]:
    """A stream, in which only the first utterance has ``<s>``."""
    first, *others = item.context
    return [*first, *(token for said in others for token in said[1:]), *item.response]


@pytest.mark.parametrize("template", ["", "chatml", "instruct"])
def test_an_exported_stream_has_our_beams_and_losses_and_comes_back(in_tmp: Path, template: str) -> None:
    """Where nothing else is left, with and without a chat template."""
    trained_run(in_tmp, template)
    export_run(Path("run"), Path("exported"))
    trained = TrainedModel.load(Path("run"))
    Path("run").rename("gone")
    model = AutoModelForCausalLM.from_pretrained("exported").eval()
    assert isinstance(model, HighrankStreamModel)
    tokenizer = AutoTokenizer.from_pretrained("exported")
    for talk in TALKS:
        said = [Utterance("AB"[(len(talk) - place) % 2], text) for place, text in enumerate(talk, 1)]
        ((ours, *_),) = trained.respond([next_example(said, "B", 4)], trained.config.decode)
        system = [] if template else [{"role": "system", "content": "be brief"}]  # ignored without a template
        read = tokenizer.apply_chat_template(
            [*system, *messages(talk, template)],
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
        )
        found = model.generate(**read)[0, read["input_ids"].shape[1] :].tolist()
        assert found[: found.index(trained.marks.eos)] == list(ours.tokens)
    talk = Dialog("1", "", tuple(Utterance("AB"[place % 2], text) for place, text in enumerate(SAID)))
    nll = trained.nll([talk])
    for item, score in zip(encode_dialogs([talk], trained.codec, trained.config).items, nll, strict=True):
        ids = torch.tensor([whole(item)])
        labels = ids.clone()
        labels[:, : -len(item.response) + 1] = -100
        with torch.no_grad():
            loss = model(ids, labels=labels).loss
        assert float(loss) * (len(item.response) - 1) == pytest.approx(score.nll, rel=1e-5)
    import_run(Path("exported"), Path("back"))
    back = TrainedModel.load(Path("back"))
    before, after = trained.model.state_dict(), back.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert back.nll([talk]) == nll


def test_padding_changes_no_response(in_tmp: Path) -> None:
    trained_run(in_tmp, "")
    export_run(Path("run"), Path("exported"))
    model = AutoModelForCausalLM.from_pretrained("exported").eval()
    tokenizer = AutoTokenizer.from_pretrained("exported")
    options: dict[str, Any] = {"add_generation_prompt": True, "return_dict": True, "return_tensors": "pt"}
    talks = [messages(talk, "") for talk in TALKS]
    together = model.generate(
        **tokenizer.apply_chat_template(talks, padding=True, **options), min_new_tokens=8
    )
    ids = torch.tensor([[1, 2, 3]] * 2)
    with pytest.raises(ValueError, match="pad on the left"):
        model(ids, attention_mask=torch.tensor([[1, 1, 0], [0, 1, 1]]).bool())
    for talk, row in zip(talks, together.tolist(), strict=True):
        apart = model.generate(**tokenizer.apply_chat_template(talk, **options), min_new_tokens=8)
        assert row[-9:] == apart[0, -9:].tolist()
