"""Wiring of a dialog training run: corpus, codec, model and run folder for the engine."""

import os
from collections.abc import Sequence
from pathlib import Path

from dialog.config import DialogConfig
from dialog.corpora.corpus import Dialog, load_dialogs, train_codec
from dialog.corpora.own_data import in_run
from dialog.decoding.config import DecodeConfig
from dialog.describe import describe
from dialog.task import DialogTask, build_model
from lm.config.load import Resolved
from lm.engine.events import Reporter
from lm.engine.loop import FitResult, Verdict
from lm.engine.session import Family, Place, Ready, pretrained, train_run
from lm.runs.inputs import DATA, codec_of
from lm.text.vectors import VECTORS_HASH
from lm.text.vocabulary import Codec

_Splits = tuple[list[Dialog], list[Dialog]]


def train(
    resolved: Resolved[DialogConfig], folder: Path, report: Reporter, verdict: Verdict | None = None
) -> FitResult:
    """Train or resume the run in a folder, see :func:`lm.engine.session.train_run`.

    The codec is learned only from the training split and stored in the folder.
    """
    return train_run(FAMILY, resolved, folder, report, verdict)


def _load(config: DialogConfig, folder: Path) -> tuple[Codec, _Splits]:
    """The splits for training and validation, and the codec."""
    data = in_run(folder, config.data)
    dialogs = load_dialogs(data.train)
    valid = load_dialogs(data.valid)
    codec = _codec(folder, config, dialogs)
    return codec, (dialogs, valid)


def _codec(folder: Path, config: DialogConfig, dialogs: Sequence[Dialog]) -> Codec:
    """The run's codec, read from the folder if it has one, else learned."""
    if os.path.lexists(folder / DATA):  # written after the codec, so the codec is complete
        return codec_of(folder)
    data = config.data
    return train_codec(dialogs, data.tokenizer, vocab_size=data.vocab_size, lowercase=data.lowercase)


def _ready(config: DialogConfig, codec: Codec, splits: _Splits, place: Place) -> Ready:
    model = build_model(config, codec)
    vectors = pretrained(model.embedding, config.model.vectors, codec, place)
    task = DialogTask(config, codec, model, *splits, place.device)
    if vectors is None:
        return Ready(task, task.fingerprints)
    return Ready(task, {**task.fingerprints, VECTORS_HASH: vectors.sha256}, [vectors.coverage])


FAMILY = Family(
    load=_load,
    describe=describe,
    # without activations: their estimate assumes full-length utterances, and few have a third of this length
    needed=lambda memory: memory["training"] - memory["activations"],
    remedy="lower data.vocab_size, head.components or the model's sizes",
    task=_ready,
    free=frozenset(f"decode.{key}" for key in DecodeConfig.model_fields),  # never read in training
)
