"""Wiring of a training run: corpus, codec, model and run folder, handed to the engine."""

from collections.abc import Sequence
from pathlib import Path

from dialog.corpus import Dialog, load_dialogs, train_codec
from dialog.schema import DialogConfig
from dialog.task import CODEC_HASH, DATA, DialogTask, build_model
from lm.config import Resolved
from lm.errors import DataError
from lm.progress import Reporter
from lm.run import Run
from lm.stop import RESUME, interruptible
from lm.storage import read_json, write_json
from lm.text import Codec
from lm.train import FitResult, configure_device, fit, require_end, seed_everything

RESUMABLE = frozenset(
    f"train.{key}"
    for key in (
        "max_steps", "max_epochs", "max_minutes", "patience", "checkpoint_every", "checkpoint_minutes",
        "keep_best", "keep_last",
    )
)  # fmt: skip
"""Keys that may change when a run is resumed. ``decode`` may as well: training never reads it."""


def train(resolved: Resolved[DialogConfig], folder: Path, report: Reporter) -> FitResult:
    """Train, or resume, the run of a folder.

    The codec is learned from the training split alone and kept in the folder. Equal configs, data, build and
    thread count give bit-identical runs, however often they were stopped.

    Raises:
        DataError: a split cannot be read, or the training text changed since the run began.
        ConfigError, StorageError, DivergenceError, Interrupted: see :func:`lm.train.fit` and
            :meth:`lm.run.Run.open`.
    """
    config = resolved.config
    require_end(config.train)
    keys = (
        RESUMABLE
        | {f"decode.{key}" for key in type(config.decode).model_fields}
        | {"about", "extends", "data.test"}
    )
    device = configure_device(config.train)
    dialogs, valid = _load(config)  # before the folder is made, so that bad data leaves none
    with Run.open(folder, resolved, resumable_keys=keys) as run:
        codec = _codec(folder, config, dialogs)
        run.stop.check()
        seed_everything(config.train.seed)
        task = DialogTask(config, codec, build_model(config, codec), dialogs, valid, device)
        _same_data(folder / DATA, {**task.fingerprints, CODEC_HASH: codec.fingerprint}, config)
        return fit(task, config.train, config.optim, run, report)


def _load(config: DialogConfig) -> tuple[list[Dialog], list[Dialog]]:
    """Both splits that training needs; a signal ends it as it ends training."""
    with interruptible(RESUME) as poll:
        dialogs, valid = load_dialogs(config.data.train), load_dialogs(config.data.valid)
        poll()
    return dialogs, valid


def _codec(folder: Path, config: DialogConfig, dialogs: Sequence[Dialog]) -> Codec:
    """The run's codec: read where the folder has one, learned and saved otherwise."""
    if (folder / DATA).is_file():  # written after the codec, so the codec is complete
        return Codec.load(folder)
    data = config.data
    codec = train_codec(dialogs, data.tokenizer, vocab_size=data.vocab_size, lowercase=data.lowercase)
    codec.save(folder)
    return codec


def _same_data(path: Path, hashes: dict[str, str], config: DialogConfig) -> None:
    """Remember what the run is made of; later, insist on it."""
    if not path.is_file():
        write_json(path, hashes)
        return
    saved = read_json(path)
    changed = [
        name for name, value in hashes.items() if not isinstance(saved, dict) or saved.get(name) != value
    ]
    if changed:
        source = config.data.valid if changed == ["valid_sha256"] else config.data.train
        raise DataError(
            f"{source}: the conversations changed since this run began ({path}); "
            "restore them, or train into another folder with --run"
        )
