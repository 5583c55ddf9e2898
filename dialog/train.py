"""Wiring of a training run: corpus, codec, model and run folder, handed to the engine."""

import os
from collections.abc import Sequence
from pathlib import Path

from dialog.config import DialogConfig
from dialog.corpora.corpus import Dialog, load_dialogs, train_codec
from dialog.corpora.own_data import in_run
from dialog.describe import describe
from dialog.task import DialogTask, build_model
from lm.config.load import Resolved
from lm.engine.choice import kept_choices, measured_choices
from lm.engine.device import configure_device
from lm.engine.events import Reporter
from lm.engine.loop import FitResult, Verdict, fit, require_end, seed_everything
from lm.engine.memory import require_memory
from lm.errors import DataError
from lm.measures import require_learnt
from lm.runs.inputs import CODEC_HASH, DATA, RESUMABLE, codec_of, settle_inputs
from lm.runs.run import Run, require_same_config
from lm.text.vocabulary import Codec


def train(
    resolved: Resolved[DialogConfig], folder: Path, report: Reporter, verdict: Verdict | None = None
) -> FitResult:
    """Train, or resume, the run of a folder.

    The codec is learned from the training split alone and kept in the folder. Equal configs, data, build and
    thread count give bit-identical runs, however often they were stopped. ``verdict`` may end one at a
    validation.

    Raises:
        DataError: a split cannot be read, or the training text changed since the run began.
        ConfigError: sizes that do not fit each other, or more memory than there is would be needed; see also
            :func:`lm.engine.loop.fit`.
        StorageError, DivergenceError, Interrupted: see :func:`lm.engine.loop.fit` and
            :meth:`lm.runs.run.Run.open`.
    """
    resolved = kept_choices(resolved, folder)
    config = resolved.config
    require_end(config.train)
    keys = RESUMABLE | {f"decode.{key}" for key in type(config.decode).model_fields}  # never read in training
    require_same_config(folder, resolved, resumable_keys=keys)
    device = configure_device(config.train)
    dialogs, valid, codec = _load(config, folder)  # before the folder is made: what is bad leaves none
    described = describe(config, len(codec.vocabulary))
    memory = described["memory"]
    # without activations, whose estimate is for utterances of full length: few are a third as long
    needed = memory["training"] - memory["activations"]
    require_memory(needed, device, "lower data.vocab_size, head.components or the model's sizes")
    sizes = described["vocabulary"], described["sizes"]["contexts"]
    resolved = measured_choices(resolved, sizes, device, folder, report)
    config = resolved.config
    seed_everything(config.train.seed)
    task = DialogTask(config, codec, build_model(config, codec), dialogs, valid, device)
    with Run.open(folder, resolved, resumable_keys=keys) as run:
        if changed := settle_inputs(folder, codec, {**task.fingerprints, CODEC_HASH: codec.fingerprint}):
            source = config.data.valid if changed == ["valid_sha256"] else config.data.train
            raise DataError(
                f"{source}: the conversations changed since this run began ({folder / DATA}); "
                "restore them, or train into another folder with --run"
            )
        result = fit(task, config.train, config.optim, run, report, verdict, len(codec.vocabulary))
    require_learnt(result.best_nll, len(codec.vocabulary), folder)
    return result


def _load(config: DialogConfig, folder: Path) -> tuple[list[Dialog], list[Dialog], Codec]:
    """Both splits that training needs, and the codec."""
    data = in_run(folder, config.data)
    dialogs = load_dialogs(data.train)
    valid = load_dialogs(data.valid)
    codec = _codec(folder, config, dialogs)
    return dialogs, valid, codec


def _codec(folder: Path, config: DialogConfig, dialogs: Sequence[Dialog]) -> Codec:
    """The run's codec: read where the folder has one, learned otherwise."""
    if os.path.lexists(folder / DATA):  # written after the codec, so the codec is complete
        return codec_of(folder)
    data = config.data
    return train_codec(dialogs, data.tokenizer, vocab_size=data.vocab_size, lowercase=data.lowercase)
