"""Modules as shapes alone: the right sizes, and none of what makes them slow to build."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from lm.config.load import load_config
from lm.engine.shapes import shapes_only
from lm.errors import ConfigError
from lm.language.config import LmConfig
from lm.language.model import LanguageModel
from tests.support.tiny_training import write_corpus

TINY = """
[data]
train = "train.txt"
valid = "valid.txt"
test = "valid.txt"
[model]
embedding_size = 6
hidden_sizes = [7]
[train]
batch_size = 2
device = "cpu"
"""
LIGHT = """
import importlib
import sys
describe = ["--set", "head.components=2", "--set", "cell.weight_rank=2"]
train = ["tiny.toml", "--set", "train.max_steps=2", "--run"]
for family, *arguments in (
    ("lm", "describe", "ptb_mos", *describe),
    ("dialog", "describe", "smalltalk_mos", *describe),
    *(("lm", "train", *train, name, "--set", f"optim.name={name}") for name in ("adam", "muon", "sgd")),
):
    try:
        importlib.import_module(f"{family}.cli").main(arguments)
    except SystemExit as ending:
        assert not ending.code
    assert "torch" in sys.modules
    assert "torch._dynamo" not in sys.modules, arguments
"""


def test_modules_have_their_shapes_and_nothing_else() -> None:
    config = load_config("ptb_mos", LmConfig, family="lm").config
    overrides = ["model.hidden_sizes=[5,4]", "model.embedding_size=4", "head.embedding_size=4"]
    small = load_config("ptb_mos", LmConfig, family="lm", overrides=overrides).config
    before = torch.get_rng_state()
    with shapes_only():
        LanguageModel(config, 10_000)
        shapes = LanguageModel(small, 9)
        filled = nn.init.constant_(tensor=torch.empty(2, 3), val=1.0)
    assert torch.equal(torch.get_rng_state(), before)
    assert filled.shape == (2, 3)
    real = LanguageModel(small, 9)
    assert [(name, p.shape, p.dtype, p.requires_grad) for name, p in real.named_parameters()] == [
        (name, p.shape, p.dtype, p.requires_grad) for name, p in shapes.named_parameters()
    ]
    assert all(p.is_meta for p in shapes.parameters())
    weight = nn.Linear(2, 2).weight
    assert not weight.is_meta
    assert nn.init.ones_(weight).sum() == 4


@pytest.mark.parametrize("size", [10**17, 10**30])
def test_sizes_that_cannot_be_counted_are_a_mistake_in_the_config(size: int) -> None:
    config = load_config("ptb_small_softmax", LmConfig, family="lm").config
    config = config.model_copy(
        update={
            part: getattr(config, part).model_copy(update={"embedding_size": size})
            for part in ("model", "head")
        }
    )
    with pytest.raises(ConfigError, match="sizes overflow"), shapes_only():
        LanguageModel(config, 10_000)


def test_describe_and_train_load_no_compiler(tmp_path: Path) -> None:
    """torch imports its compiler, which takes seconds, at the first call of an optimiser of torch.optim."""
    write_corpus(tmp_path, TINY, train=20, valid=5, longest=9)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    ended = subprocess.run(
        [sys.executable, "-c", LIGHT],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
