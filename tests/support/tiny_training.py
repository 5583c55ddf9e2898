"""A language model that trains on a made-up text in no time, by ``tiny.toml`` in the working folder."""

from pathlib import Path

import numpy as np
import torch

from lm.config.load import Resolved, load_config
from lm.engine.rng import seed_everything
from lm.language.config import LmConfig
from lm.language.corpora.corpus import load_codec, load_split
from lm.language.model import LanguageModel
from lm.language.sizes import sized
from lm.language.task import LmTask

WORDS = ("the", "cat", "sat", "on", "a", "mat", "while", "some", "dogs", "slept", "and", "<unk>", "N")


def write_corpus(folder: Path, config: str, train: int, valid: int, longest: int) -> Path:
    """So many lines of each split, of fewer words than ``longest``, and the config; returns the folder."""
    rng = np.random.default_rng(3)
    for name, lines in (("train", train), ("valid", valid)):
        text = [" ".join(rng.choice(WORDS, rng.integers(0, longest))) for _ in range(lines)]
        (folder / f"{name}.txt").write_text("\n".join(text) + "\n")
    (folder / "tiny.toml").write_text(config)
    return folder


def resolved(*overrides: str) -> Resolved[LmConfig]:
    """The config, changed."""
    return load_config("tiny.toml", LmConfig, family="lm", overrides=overrides)


def task(*overrides: str, dtype: torch.dtype = torch.float32) -> LmTask:
    """The task of the config, changed, with a new model."""
    config = resolved(*overrides).config
    codec = load_codec(config.data)
    seed_everything(1)
    words = len(codec.vocabulary)
    model = LanguageModel(sized(config, words), words, codec.vocabulary.eos).to(dtype)
    splits = [load_split(source, codec) for source in (config.data.train, config.data.valid)]
    return LmTask(config, codec.vocabulary.eos, model, *splits, torch.device("cpu"))
