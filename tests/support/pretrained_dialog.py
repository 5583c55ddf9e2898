"""A dialog run on a pretrained model in the folder ``folder``: its config, codec and model."""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from dialog.cli import main
from dialog.config import DialogConfig
from dialog.corpora.corpus import load_dialogs, train_codec
from dialog.seq2seq import Seq2Seq, start_dialog
from dialog.task import build_model
from dialog.train import train
from lm.config.load import load_config
from lm.engine.events import no_report
from lm.runs.checkpoint import CheckpointStore
from lm.text.vocabulary import Codec
from tests.support.tiny_dialog import write_corpus

CONFIG = """
[data]
train = "talk.jsonl"
valid = "talk.jsonl"
test = "talk.jsonl"
tokenizer = "hf"
lowercase = false
context = 3
max_tokens = 28
max_response = 20
[model]
trunk = "hf:folder"
dropout = 0.1
[head]
kind = "mos"
components = 2
context_activation = "none"
start = "pretrained"
products = "float32"
[optim]
lr = 0.01
trunk_lr_ratio = 0.5
[train]
batch_size = 1
max_steps = 6
validate_every = 3
[decode]
beam = 2
max_length = 8
products = "float32"
"""


def write_talk(folder: Path) -> Path:
    """Write ``run.toml`` and its corpus ``talk.jsonl``."""
    write_corpus(folder)
    (folder / "run.toml").write_text(CONFIG, "utf-8")
    return folder


def config(*overrides: str) -> DialogConfig:
    return load_config("run.toml", DialogConfig, family="dialog", overrides=overrides).config


def codec_here() -> Codec:
    return train_codec(load_dialogs("talk.jsonl"), "wordpunct", vocab_size=0, pretrained=Path("folder"))


def model_of(settings: DialogConfig, codec: Codec) -> Seq2Seq:
    model = build_model(settings, codec)
    start_dialog(settings, model.embedding, model.decoder, model.head)
    return model.eval()


def assert_resumes_without_the_folder(ending: Callable[..., tuple[int, str, str]]) -> None:
    """Bit for bit, also with recomputed activations, as the run ``cut``, which can be evaluated."""
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
