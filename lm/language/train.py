"""Wiring of a language-model training run: corpus, model and run folder for the engine."""

import json
import os
from pathlib import Path

from torch import Tensor

from lm.config.load import Resolved, override
from lm.config.settings import keys_of
from lm.engine.events import Reporter
from lm.engine.loop import FitResult, Verdict
from lm.engine.optim import freeze
from lm.engine.session import START_HASH, TRUNK_HASH, Family, Place, Ready, start_with_vectors, train_run
from lm.engine.shapes import shapes_only
from lm.engine.state import load_model_tensors, misfit, model_tensors
from lm.errors import ConfigError, require
from lm.heads.start import start_at_frequencies
from lm.huggingface.starting import local, require_pretrained, start_pretrained, trunk_file
from lm.language.config import LmConfig
from lm.language.corpora.corpus import TokenSplit, load_codec, load_split
from lm.language.describe import describe
from lm.language.model import LanguageModel
from lm.language.pretrained_trunk import block_note, require_vocabulary
from lm.language.sizes import sized, with_sizes
from lm.language.task import LmTask
from lm.runs.checkpoint import CheckpointStore
from lm.runs.inputs import CONFIG, DATA, codec_of, config_of, opened_run
from lm.text.vectors import VECTORS_HASH
from lm.text.vocabulary import Codec
from lm.trunks.names import pretrained_path

FINETUNING = (  # Merity et al. 2018, §5: averaged SGD from the best weights, until validation stalls
    'optim.name="sgd"', 'optim.schedule="constant"', "optim.warmup_steps=0", 'optim.average="uniform"',
    "optim.average_start=0", "optim.average_trigger=0", "optim.average_patience=0", "train.patience=0",
    "train.max_steps=0", "train.max_minutes=0.0",
)  # fmt: skip
_Splits = tuple[TokenSplit, TokenSplit]
STALLED = 5  # patience in validations, unless the run sets another
SGD_ONLY = (  # for runs with another optimiser
    "optim.weight_decay=1.2e-6", "optim.clip_norm=0.25", "optim.muon_momentum=0.95",
)  # fmt: skip


def train(
    resolved: Resolved[LmConfig], folder: Path, report: Reporter, verdict: Verdict | None = None
) -> FitResult:
    """Train or resume the run in a folder, see :func:`lm.engine.session.train_run`.

    ``train.start_from`` names the run with the initial weights.
    """
    return train_run(FAMILY, resolved, folder, report, verdict)


def finetuned(run: Path, overrides: list[str]) -> Resolved[LmConfig]:
    """The config that finetunes a run: its own, with averaged SGD from its best weights, and overrides.

    The patience is the window of the run's own averaging trigger (60 for DOC, as in its authors' README), or
    5. The limits of the run do not apply, except for ``train.max_epochs``. ConfigError if the run was not
    trained with SGD and no rate is given, because the rate of another optimiser is far too low.
    """
    resolved = config_of(run, LmConfig)
    given = keys_of(overrides)
    if "train.start_from" in given:
        raise ConfigError(f"--set train.start_from: is {run} itself; finetune the other run instead")
    trained_by = resolved.config.optim.name
    if trained_by != "sgd" and not {"optim.lr", "optim.name"} & {*given}:
        raise ConfigError(
            f"{run}: trained by {trained_by}, whose learning rate is too low for SGD;"
            " give one, as in --set optim.lr=20"
        )
    own = resolved.config.train
    trigger = resolved.config.optim.average_trigger or (own.stop_trigger if own.start_from else 0) or STALLED
    settings = (*FINETUNING, f"train.stop_trigger={trigger}", *(() if trained_by == "sgd" else SGD_ONLY))
    usual = [text for text in settings if text.partition("=")[0] not in given]
    changes = [*usual, f"train.start_from={json.dumps(str(run), ensure_ascii=False)}", *overrides]
    return override(resolved, changes, LmConfig, sections=("data", "optim", "train", "window"))


def _load(config: LmConfig, folder: Path) -> tuple[Codec, _Splits]:
    """The codec, which is the run's own if it has one, and both splits."""
    begun = os.path.lexists(folder / DATA)  # written after the codec, so the codec is complete
    if not begun:
        require_pretrained(config)
    codec = codec_of(folder) if begun else _new_codec(config)
    if not begun:
        require_vocabulary(config, codec)
    train_split = load_split(config.data.train, codec)
    return codec, (train_split, load_split(config.data.valid, codec))


def _new_codec(config: LmConfig) -> Codec:
    """The codec of a new run, of text files that of ``train.start_from`` if the trunk is pretrained.

    That run has a copy of the trunk's architecture, without the tokenizer beside it.
    """
    trunk, source = pretrained_path(config.model.trunk), config.train.start_from
    if trunk is not None and source and not Path(config.data.train).is_dir():
        return codec_of(Path(source))
    return load_codec(config.data, trunk)


def _ready(config: LmConfig, codec: Codec, splits: _Splits, place: Place) -> Ready:
    """A new model and its task; its weights are from ``train.start_from`` if the run has none."""
    words = codec.vocabulary
    sizes = place.described["sizes"]
    config = with_sizes(config, tuple(sizes["hidden"]), sizes["embedding"])
    model = LanguageModel(config, len(words), words.eos)
    hashes = {"train_sha256": splits[0].fingerprint, "valid_sha256": splits[1].fingerprint}
    if not place.begun:
        pretrained = bool(config.train.start_from or pretrained_path(config.model.trunk))
        random = 'train.freeze = "trunk": the trunk would stay random; set train.start_from to a run'
        require(pretrained or config.train.freeze != "trunk", random)
        if config.train.start_from:
            commit = CheckpointStore.of(Path(config.train.start_from)).open("best")
            load_model_tensors(model, commit.inference_tensors())
            hashes[START_HASH] = commit.state_sha256
        elif sha256 := start_pretrained(config, model.layers, model.embedding, model.head):
            hashes[TRUNK_HASH] = sha256
        if config.head.start == "frequencies" and not config.train.start_from:
            start_at_frequencies(model.head, codec.expected_counts())
    path = "" if config.train.start_from else config.model.vectors  # a finetuned model has its embedding
    vectors = start_with_vectors(model.embedding, path, codec, place)
    if vectors is not None:
        hashes[VECTORS_HASH] = vectors.sha256
    freeze(config.train, model)
    task = LmTask(config, words.eos, model, *splits, place.device, words.bos)
    notes = [*block_note(config), *([vectors.coverage] if vectors else [])]
    return Ready(task, hashes, notes, trunk_file(config), config.head.start == "pretrained")


def _require_start(config: LmConfig, codec: Codec) -> None:
    """Raise ConfigError if ``train.start_from`` names a run of another vocabulary or model.

    StorageError for no run. Weights are not read.
    """
    source = Path(config.train.start_from)
    if not config.train.start_from:
        return
    trained, other = opened_run(source, LmConfig)
    if other.fingerprint != codec.fingerprint:
        raise ConfigError(
            f"train.start_from = {source}: trained with another vocabulary; use that run's data"
        )
    if reason := misfit(_shapes(config, codec), _shapes(local(trained, source), codec)):
        raise ConfigError(
            f"train.start_from = {source}: has other weights than this config: {reason};"
            f" set the kinds and sizes of head and layers as {source / CONFIG} has them"
        )


def _shapes(config: LmConfig, codec: Codec) -> dict[str, Tensor]:
    """Parameters and buffers of a model by name, without values."""
    words = codec.vocabulary
    with shapes_only():
        return model_tensors(LanguageModel(sized(config, len(words)), len(words), words.eos))


FAMILY = Family(
    local=local,
    check=_require_start,
    load=_load,
    describe=describe,
    remedy="lower train.batch_size, head.components, window.length or the model's sizes",
    task=_ready,
)
