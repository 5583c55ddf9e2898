"""Wiring of a training run of a language model: corpus, model and run folder, handed to the engine."""

import json
import os
from pathlib import Path

from lm.config.load import Resolved, override
from lm.engine.choice import kept_choices, measured_choices
from lm.engine.device import configure_device
from lm.engine.events import Reporter
from lm.engine.loop import FitResult, Verdict, fit, require_end, seed_everything
from lm.engine.memory import require_memory
from lm.engine.state import load_model_tensors
from lm.errors import ConfigError, DataError, visible
from lm.language.config import LmConfig
from lm.language.corpus import TokenSplit, load_codec, load_split
from lm.language.describe import describe
from lm.language.model import LanguageModel
from lm.language.sizes import sized, with_sizes
from lm.language.task import LmTask
from lm.measures import require_learnt
from lm.runs.checkpoint import CheckpointStore
from lm.runs.inputs import CODEC_HASH, DATA, RESUMABLE, codec_of, config_of, require_unchanged, settle_inputs
from lm.runs.run import Run, require_same_config
from lm.text.vocabulary import Codec

START_HASH = "start_from_sha256"
FINETUNING = (  # Merity et al. 2018, §5: averaged SGD from the best weights, until validation stalls
    'optim.name="sgd"', 'optim.schedule="constant"', "optim.warmup_steps=0", 'optim.average="uniform"',
    "optim.average_start=0", "optim.average_trigger=0", "optim.average_patience=0", "train.patience=0",
    "train.max_steps=0", "train.max_minutes=0.0",
)  # fmt: skip
STALLED = 5  # validations, where the run does not say otherwise
SGD_ONLY = ("optim.weight_decay=1.2e-6", "optim.clip_norm=0.25")  # where the run had another optimiser


def train(
    resolved: Resolved[LmConfig], folder: Path, report: Reporter, verdict: Verdict | None = None
) -> FitResult:
    """Train, or resume, the run of a folder; ``train.start_from`` names the run whose weights begin it.

    ``verdict`` may end it at a validation: see :func:`lm.engine.loop.fit`.
    Equal configs, data, build and thread count give bit-identical runs, however often they were stopped.

    Raises:
        DataError: a split cannot be read, or changed since the run began.
        ConfigError: more memory than there is would be needed; see also :func:`lm.engine.loop.fit`.
        StorageError, DivergenceError, Interrupted: see :func:`lm.engine.loop.fit` and
            :meth:`lm.runs.run.Run.open`.
    """
    resolved = kept_choices(resolved, folder)
    config = resolved.config
    require_end(config.train)
    require_same_config(folder, resolved, resumable_keys=RESUMABLE)
    device = configure_device(config.train)
    codec, train_split, valid_split = _load(config, folder)  # before the folder is made: bad data leaves none
    config = sized(config, len(codec.vocabulary))
    described = describe(config, len(codec.vocabulary))
    remedy = "lower train.batch_size, head.components, window.length or the model's sizes"
    require_memory(described["memory"]["training"], device, remedy)
    sizes = described["vocabulary"], described["sizes"]["contexts"]
    resolved = measured_choices(resolved, sizes, device, folder, report)
    config = with_sizes(resolved.config, config.model.hidden_sizes)
    seed_everything(config.train.seed)
    model = LanguageModel(config, len(codec.vocabulary), codec.vocabulary.eos)
    hashes = {
        "train_sha256": train_split.fingerprint,
        "valid_sha256": valid_split.fingerprint,
        CODEC_HASH: codec.fingerprint,
    }
    if config.train.start_from and CheckpointStore(folder / "checkpoints").latest() is None:
        hashes[START_HASH] = _start(model, codec, Path(config.train.start_from))
    task = LmTask(config, codec.vocabulary.eos, model, train_split, valid_split, device)
    with Run.open(folder, resolved, resumable_keys=RESUMABLE) as run:
        if changed := settle_inputs(folder, codec, hashes):
            others = {
                "valid_sha256": f"{config.data.valid}: the text",
                START_HASH: f"{config.train.start_from}: the best checkpoint",
            }
            what = others.get(changed[0], f"{config.data.train}: the text")
            raise DataError(
                f"{what} changed since this run began; restore it, or train into another folder with --run"
            )
        result = fit(task, config.train, config.optim, run, report, verdict, len(codec.vocabulary))
    require_learnt(result.best_nll, len(codec.vocabulary), folder)
    return result


def finetuned(run: Path, overrides: list[str]) -> Resolved[LmConfig]:
    """The config that finetunes a run: its own, with averaged SGD from its best weights on, and overrides.

    It ends by the trigger that began the run's own averages (60 for DOC, as in its authors' README), or 5.
    The limits of the run do not hold, except for ``train.max_epochs``. ConfigError where the run was not
    trained with SGD and no rate is given: that of another optimiser would be far too low.
    """
    resolved = config_of(run, LmConfig)
    given = {text.partition("=")[0].strip() for text in overrides}
    trained_by = resolved.config.optim.name
    if trained_by != "sgd" and "optim.lr" not in given:
        raise ConfigError(
            f"{visible(run)}: trained by {trained_by}, whose rate is not one for SGD;"
            " give one, as in --set optim.lr=20"
        )
    own = resolved.config.train
    trigger = resolved.config.optim.average_trigger or (own.stop_trigger if own.start_from else 0) or STALLED
    settings = (*FINETUNING, f"train.stop_trigger={trigger}", *(() if trained_by == "sgd" else SGD_ONLY))
    usual = [text for text in settings if text.partition("=")[0] not in given]
    changes = [*usual, f"train.start_from={json.dumps(str(run), ensure_ascii=False)}", *overrides]
    return override(resolved, changes, LmConfig, sections=("data", "optim", "train", "window"))


def _load(config: LmConfig, folder: Path) -> tuple[Codec, TokenSplit, TokenSplit]:
    """The codec, the run's own where it has one, and both splits."""
    begun = os.path.lexists(folder / DATA)  # written after the codec, so the codec is complete
    codec = codec_of(folder) if begun else load_codec(config.data)
    train_split = load_split(config.data.train, codec)
    return codec, train_split, load_split(config.data.valid, codec)


def _start(model: LanguageModel, codec: Codec, source: Path) -> str:
    """Puts the best weights of another run into the model; returns the hash of that commit's state."""
    require_unchanged(source)
    other = codec_of(source)
    if other.fingerprint != codec.fingerprint:
        raise ConfigError(
            f"train.start_from = {visible(source)}: trained with another vocabulary; use the data of that run"
        )
    store = CheckpointStore(source / "checkpoints")
    load_model_tensors(model, store.weights("best"))
    return store.open("best").state_sha256
