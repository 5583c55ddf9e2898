"""Trainings of transformers and of pretrained trunks by two processes: the bits of one process."""

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tests.support.pretrained import save_model, save_pretrained, save_tokenizer, tiny_configs, tiny_pairs
from tests.support.pretrained_dialog import write_talk
from tests.support.shared_training import LM, trained
from tests.support.tiny_dialog import SAID
from tests.support.tiny_training import write_corpus

SHARDED = ("train.shards=2", "train.batch_size=2", "train.max_steps=3", 'train.device="cpu"')
OWN = (
    'model.trunk=""',
    'encoder.kind="transformer"',
    'decoder.kind="transformer"',
    "encoder.context_size=16",
    "decoder.hidden_size=16",
    "model.embedding_size=16",
    "transformer.heads=2",
    'head.start="random"',
    "optim.trunk_lr_ratio=1.0",
    'data.tokenizer="wordpunct"',
)
PRETRAINED = (
    'data.tokenizer="hf"',
    "model.trunk=hf:folder",
    "model.attention_span=9",
    "window.length=3",
    "model.weight_dropout=0.0",
    "head.latent_dropout=0.0",
    "head.context_activation=none",
    "head.start=pretrained",
)


@pytest.mark.slow
def test_language_models_on_a_pretrained_network_have_the_bits_of_one_process(tmp_path: Path) -> None:
    sizes = "embedding_size = 6\nhidden_sizes = [7, 6]\nhidden_dropout = 0.3\n"
    assert sizes in LM
    write_corpus(tmp_path, LM.replace(sizes, ""), train=120, valid=30, longest=9)
    save_pretrained(tmp_path / "folder", (tmp_path / "train.txt").read_text())
    alone = trained(tmp_path, "run-1", 1, *PRETRAINED)
    assert trained(tmp_path, "run-2", 2, *PRETRAINED) == alone


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "t5", "transformer"])
def test_dialog_models_on_transformers_have_the_bits_of_one_process(tmp_path: Path, kind: str) -> None:
    write_talk(tmp_path)
    words = save_tokenizer(tmp_path / "folder", "\n".join(SAID) * 3)
    settings = tiny_pairs(words)["t5"] if kind == "t5" else tiny_configs(words)["gpt2"]
    settings.max_position_embeddings = 128
    save_model(tmp_path / "folder", settings)
    changes = (*SHARDED, *(OWN if kind == "transformer" else ()))
    alone = trained(tmp_path, "run-1", 1, *changes, config="run.toml")
    assert trained(tmp_path, "run-2", 2, *changes, config="run.toml") == alone
