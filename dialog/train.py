"""Wiring of a dialog training run: corpus, codec, model and run folder for the engine."""

import os
from collections.abc import Sequence
from pathlib import Path

from dialog.config import DialogConfig
from dialog.corpora.corpus import load_dialogs, train_codec
from dialog.corpora.own_data import in_run
from dialog.decoding.config import DecodeConfig
from dialog.describe import describe
from dialog.seq2seq import start_dialog
from dialog.task import DialogTask, build_model
from dialog.trained import NEVER_SAID
from dialog.utterance import Dialog
from lm.config.load import Resolved
from lm.engine.events import Reporter
from lm.engine.loop import FitResult, Verdict
from lm.engine.optim import freeze
from lm.engine.session import TRUNK_HASH, Family, Place, Ready, start_with_vectors, train_run
from lm.errors import require
from lm.heads.start import start_at_frequencies
from lm.huggingface.starting import local, require_pretrained, trunk_file
from lm.runs.inputs import DATA, codec_of
from lm.text.vectors import VECTORS_HASH
from lm.text.vocabulary import Codec
from lm.trunks.names import pretrained_path

_Splits = tuple[list[Dialog], list[Dialog]]


def train(
    resolved: Resolved[DialogConfig], folder: Path, report: Reporter, verdict: Verdict | None = None
) -> FitResult:
    """Train or resume the run in a folder, see :func:`lm.engine.session.train_run`.

    The codec is learned only from the training split and stored in the folder. Raises ConfigError for a
    backward model of more than one utterance, to which a response would be the end of a dialog.
    """
    data = resolved.config.data
    require(
        data.direction == "forward" or data.context == 1,
        f"data.context = {data.context}: a backward model predicts an utterance from the one after it;"
        " set data.context = 1",
    )
    return train_run(FAMILY, resolved, folder, report, verdict)


def _load(config: DialogConfig, folder: Path) -> tuple[Codec, _Splits]:
    """The splits for training and validation, and the codec."""
    begun = os.path.lexists(folder / DATA)  # written after the codec, so the codec is complete
    if not begun:
        require_pretrained(config)
    data = in_run(folder, config.data)
    dialogs = load_dialogs(data.train)
    valid = load_dialogs(data.valid)
    return codec_of(folder) if begun else _codec(config, dialogs), (dialogs, valid)


def _codec(config: DialogConfig, dialogs: Sequence[Dialog]) -> Codec:
    """A codec learned from the training dialogs, or that of a pretrained trunk."""
    data, path = config.data, pretrained_path(config.model.trunk)
    size, kind = data.vocab_size, "wordpunct" if data.tokenizer == "hf" else data.tokenizer
    return train_codec(
        dialogs, kind, vocab_size=size, lowercase=data.lowercase, pretrained=path, chat=data.chat_template
    )


def _ready(config: DialogConfig, codec: Codec, splits: _Splits, place: Place) -> Ready:
    model = build_model(config, codec)
    vectors = start_with_vectors(model.embedding, config.model.vectors, codec, place)
    hashes = {} if vectors is None else {VECTORS_HASH: vectors.sha256}
    if not place.begun:
        sha256 = start_dialog(config, model.embedding, model.decoder, model.head)
        hashes |= {TRUNK_HASH: sha256} if sha256 else {}
        if config.head.start == "frequencies":
            words = zip(codec.vocabulary.tokens, codec.expected_counts(), strict=True)
            counts = [0 if token in NEVER_SAID else count for token, count in words]
            start_at_frequencies(model.head, counts)
    freeze(config.train, model)
    task = DialogTask(config, codec, model, *splits, place.device)
    notes = [] if vectors is None else [vectors.coverage]
    trained = config.head.start == "pretrained"
    return Ready(task, task.fingerprints | hashes, notes, trunk_file(config), trained)


FAMILY = Family(
    local=local,
    load=_load,
    describe=describe,
    # without activations: their estimate assumes full-length utterances, and few have a third of this length
    needed=lambda memory: memory["training"] - memory["activations"],
    remedy="lower data.vocab_size, head.components or the model's sizes",
    task=_ready,
    free=frozenset(f"decode.{key}" for key in DecodeConfig.model_fields),  # never read in training
)
