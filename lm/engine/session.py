"""Wiring of a training run that both families share: config, data, memory, run folder, engine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from lm.config.load import C, Resolved
from lm.engine.choice import kept_choices, measured_choices
from lm.engine.device import configure_device
from lm.engine.events import Reporter
from lm.engine.loop import FitResult, Task, Verdict, fit, require_end, seed_everything
from lm.engine.memory import require_memory
from lm.errors import DataError
from lm.measures import require_learnt
from lm.runs.inputs import CODEC_HASH, RESUMABLE, settle_inputs
from lm.runs.run import Run, require_same_config
from lm.text.vocabulary import Codec

D = TypeVar("D")
START_HASH = "start_from_sha256"


class Place(NamedTuple):
    """The run folder, the device and the sizes of a training."""

    folder: Path
    device: torch.device
    described: Mapping[str, Any]


class Ready(NamedTuple):
    """A task and the hashes of what it reads, by their keys in ``data.json``."""

    task: Task[Any]
    hashes: Mapping[str, str]


@dataclass(frozen=True)
class Family(Generic[C, D]):
    """The steps of a training in which language models and dialog models differ.

    ``load`` returns the codec and the data. ``describe`` returns the sizes of a config for a number of words,
    and ``needed`` bytes from the section ``memory`` of those. ``task`` makes the model and the task.
    """

    load: Callable[[C, Path], tuple[Codec, D]]
    describe: Callable[[C, int], Mapping[str, Any]]
    remedy: str  # against too little memory
    task: Callable[[C, Codec, D, Place], Ready]
    needed: Callable[[Mapping[str, int]], int] = lambda memory: memory["training"]
    free: frozenset[str] = frozenset()  # keys besides RESUMABLE with any value when a run is resumed


def train_run(
    family: Family[C, D],
    resolved: Resolved[C],
    folder: Path,
    report: Reporter,
    verdict: Verdict | None = None,
) -> FitResult:
    """Train, or resume, the run of a folder.

    Equal configs, data, build and thread count give bit-identical runs, regardless of interruptions.
    ``verdict`` may end a training at a validation: see :func:`lm.engine.loop.fit`.

    Raises:
        DataError: a split cannot be read, or changed since the run began.
        ConfigError: sizes that do not fit each other, or too little memory; see also
            :func:`lm.engine.loop.fit`.
        StorageError, DivergenceError, Interrupted: see :func:`lm.engine.loop.fit` and
            :meth:`lm.runs.run.Run.open`.
    """
    resolved = kept_choices(resolved, folder)
    config: Any = resolved.config
    free = RESUMABLE | family.free
    require_end(config.train)
    require_same_config(folder, resolved, resumable_keys=free)
    device = configure_device(config.train)
    codec, data = family.load(config, folder)  # before the folder is made: bad data leave none
    words = len(codec.vocabulary)
    described = family.describe(config, words)
    require_memory(family.needed(described["memory"]), device, family.remedy)
    sizes = described["vocabulary"], described["sizes"]["contexts"]
    resolved = measured_choices(resolved, sizes, device, folder, report)
    config = resolved.config
    seed_everything(config.train.seed)
    task, hashes = family.task(config, codec, data, Place(folder, device, described))
    with Run.open(folder, resolved, resumable_keys=free) as run:
        if changed := settle_inputs(folder, codec, {**hashes, CODEC_HASH: codec.fingerprint}):
            raise DataError(_changed(config, changed[0]))
        result = fit(task, config.train, config.optim, run, report, verdict, words)
    require_learnt(result.best_nll, words, folder)
    return result


def _changed(config: Any, name: str) -> str:
    """The error about an input with another hash than the run began with."""
    what = f"{config.data.valid if name == 'valid_sha256' else config.data.train}: the text"
    if name == START_HASH:
        what = f"{config.train.start_from}: the best checkpoint"
    return f"{what} changed since this run began; restore it, or train into another folder with --run"
