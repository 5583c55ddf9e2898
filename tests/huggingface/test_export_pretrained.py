"""Exported runs on pretrained trunks, opened where nothing else of them is left."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM, AutoTokenizer

from lm.config.load import load_config
from lm.engine.events import no_report
from lm.export import export_run
from lm.language.config import LmConfig
from lm.language.train import train
from tests.support.pretrained import save_pretrained
from tests.support.tiny_lm import text_of

CONFIG = """
[data]
train = "train.txt"
valid = "valid.txt"
test = "valid.txt"
tokenizer = "hf"
[model]
trunk = "hf:folder"
attention_span = 16
[head]
kind = "mos"
components = 2
context_activation = "none"
start = "pretrained"
products = "float32"
[train]
batch_size = 4
max_steps = 2
"""


def exported(folder: Path, kind: str) -> tuple[Any, Any]:
    """An exported model and its tokenizer; the pretrained folder and the run are gone."""
    (folder / "train.txt").write_text(text_of(60, 1))
    (folder / "valid.txt").write_text(text_of(8, 2))
    (folder / "run.toml").write_text(CONFIG)
    save_pretrained(folder / "folder", text_of(90, 7), kind)
    train(load_config("run.toml", LmConfig, family="lm"), folder / "run", no_report)
    export_run(folder / "run", folder / "exported")
    (folder / "folder").rename(folder / "gone")
    (folder / "run").rename(folder / "old")
    model = AutoModelForCausalLM.from_pretrained(folder / "exported").eval()
    return model, AutoTokenizer.from_pretrained(folder / "exported")


def test_padding_changes_no_text_and_another_save_no_probability(in_tmp: Path) -> None:
    model, tokenizer = exported(in_tmp, "llama")
    texts = [line for line in text_of(9, seed=5).splitlines() if line]
    rules = {"max_new_tokens": 4, "min_new_tokens": 4, "num_beams": 2, "do_sample": False}
    together = model.generate(**tokenizer(texts, padding=True, return_tensors="pt"), **rules)
    for text, row in zip(texts, together, strict=True):
        apart = model.generate(**tokenizer(text, return_tensors="pt"), **rules)
        assert row[-4:].tolist() == apart[0, -4:].tolist()
    model.save_pretrained(in_tmp / "saved")
    again = AutoModelForCausalLM.from_pretrained(in_tmp / "saved").eval()
    with torch.no_grad():
        assert torch.equal(again(together).logits, model(together).logits)
    half = AutoModelForCausalLM.from_pretrained(in_tmp / "exported", dtype=torch.bfloat16).eval()
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        torch.testing.assert_close(half(together).logits.float(), model(together).logits, rtol=0, atol=0.2)
    assert 'model.trunk = "hf:folder"' in (in_tmp / "exported" / "README.md").read_text()
