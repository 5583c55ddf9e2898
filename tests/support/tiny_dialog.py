"""A tiny dialog model with random weights, and tiny trained runs."""

import json
from pathlib import Path

import torch

from dialog.config import DialogConfig
from dialog.task import build_model
from dialog.train import train
from dialog.trained import TrainedModel
from lm.config.load import load_config
from lm.engine.events import no_report
from lm.text.tokenizers import DIALOG
from lm.text.vocabulary import build_codec


def tiny_dialog() -> TrainedModel:
    """A model with the same weights at every call."""
    config = DialogConfig.model_validate(
        {
            "model": {"embedding_size": 8, "init_range": 1.0},
            "encoder": {"utterance_size": 6, "context_size": 7},
            "decoder": {"hidden_size": 9},
            "head": {"kind": "mos", "components": 3, "embedding_size": 8},
            "decode": {"beam": 3, "nbest": 3, "max_length": 6},
        }
    )
    texts = ["well i think we saw that film", "oh yeah it was long , was n't it", "right uh-huh"]
    codec = build_codec("wordpunct", texts, vocab_size=60, extra_counts={"<s>": 3, "</s>": 3, DIALOG: 1})
    torch.manual_seed(5)
    return TrainedModel(config, codec, build_model(config, codec).eval(), torch.device("cpu"))


SAID = ("is it raining", "yes it is", "take a coat then", "i will take one", "bye")


def write_corpus(folder: Path) -> Path:
    """Two equal conversations."""
    path = folder / "talk.jsonl"
    said = [{"speaker": "AB"[i % 2], "text": text} for i, text in enumerate(SAID)]
    path.write_text("".join(json.dumps({"id": str(i), "utterances": said}) + "\n" for i in range(2)))
    return path


def train_dialog(corpus: Path, folder: Path, *more: str) -> Path:
    """A run of eight updates, with further settings."""
    keys = [f"data.{split}={corpus}" for split in ("train", "valid", "test")]
    keys += ["model.embedding_size=8", "encoder.utterance_size=8", "encoder.context_size=12"]
    keys += ["decoder.hidden_size=12", "head.embedding_size=8", "train.max_steps=8", "train.validate_every=4"]
    keys += ["optim.lr=0.05", "optim.schedule=constant", "optim.warmup_steps=0", "decode.max_length=5"]
    keys += ["train.patience=0", *more]
    train(load_config("smalltalk_softmax", DialogConfig, family="dialog", overrides=keys), folder, no_report)
    return folder
