"""Wiring of a training run that both families share: config, data, memory, run folder, engine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from lm.config.difference import flat_config
from lm.config.load import C, Resolved, with_settings
from lm.config.settings import Setting
from lm.disk.jsonfile import JSON
from lm.engine.auto_precision import kept_precisions, measured_precisions
from lm.engine.device import configure_device, flushed_denormals, load_note
from lm.engine.events import Note, Reporter, no_report
from lm.engine.limits import notes_on_max_steps, require_end
from lm.engine.loop import FitResult, Task, Verdict, fit
from lm.engine.memory import require_memory
from lm.engine.rng import seed_everything
from lm.engine.shared_saving import Follower
from lm.errors import ConfigError, DataError
from lm.launched import processes_here
from lm.measures import require_learnt
from lm.parallel.group import Group, process_group
from lm.parallel.shards import shards_of
from lm.runs.checkpoint import CheckpointStore
from lm.runs.inputs import CODEC_HASH, RESUMABLE, RunFile, changed_inputs, save_inputs
from lm.runs.run import Run, require_same_config
from lm.text.vectors import VECTORS_HASH, WordVectors, read_vectors
from lm.text.vocabulary import Codec

D = TypeVar("D")
START_HASH, TRUNK_HASH = "start_from_sha256", "trunk_sha256"


class Place(NamedTuple):
    """The run folder, the device and the sizes of a training. ``begun``: the run has a checkpoint."""

    folder: Path
    device: torch.device
    described: Mapping[str, Any]
    begun: bool


class Ready(NamedTuple):
    """A task with what its run keeps and tells.

    ``hashes`` are those of what the task reads, by their keys in ``data.json``. ``notes`` are for the user,
    ``files`` for the run. ``trained``: the model begins as one that was trained elsewhere.
    """

    task: Task[Any]
    hashes: Mapping[str, str]
    notes: Sequence[str] = ()
    files: Mapping[RunFile, bytes] = MappingProxyType({})
    trained: bool = False


@dataclass(frozen=True)
class Family(Generic[C, D]):
    """Steps of a training in which language models and dialog models differ.

    ``load`` returns the codec and the data. ``describe`` returns the sizes of a config for a number of words.
    ``needed`` computes the bytes needed from the section ``memory`` of these sizes. ``task`` builds the model
    and the task. ``local`` replaces files that the config names by copies that the run has of them.
    ``check`` raises an error if a new run cannot begin as its config says.
    """

    load: Callable[[C, Path], tuple[Codec, D]]
    describe: Callable[[C, int], Mapping[str, Any]]
    remedy: str  # against too little memory
    task: Callable[[C, Codec, D, Place], Ready]
    needed: Callable[[Mapping[str, int]], int] = lambda memory: memory["training"]
    free: frozenset[str] = frozenset()  # keys besides RESUMABLE that may change on resume
    local: Callable[[C, Path], C] = lambda config, folder: config
    check: Callable[[C, Codec], None] = lambda config, codec: None


@flushed_denormals()
def train_run(
    family: Family[C, D],
    resolved: Resolved[C],
    folder: Path,
    report: Reporter,
    verdict: Verdict | None = None,
) -> FitResult:
    """Train or resume the run of a folder.

    Equal configs, data, build and thread count give bit-identical runs, regardless of interruptions. Products
    ``auto`` are measured, so that equal configs with them may differ.
    ``verdict`` may end a training at a validation: see :func:`lm.engine.loop.fit`.

    Under torchrun, all processes call it with the same arguments. Only rank 0 reads and writes the folder.

    Raises:
        DataError: a split cannot be read, or has changed since the run began.
        ConfigError: sizes that do not fit each other, or too little memory; see also
            :func:`lm.engine.loop.fit`.
        WorkerError: processes with different inputs or weights, or a lost process.
        StorageError, DivergenceError, Interrupted: see :func:`lm.engine.loop.fit` and
            :meth:`lm.runs.run.Run.open`.
    """
    config: Any = resolved.config
    with process_group(config.train.exchange_minutes, "train.exchange_minutes") as group:
        return _train(group, family, resolved, folder, report if group.rank == 0 else no_report, verdict)


def _train(
    group: Group,
    family: Family[C, D],
    resolved: Resolved[C],
    folder: Path,
    report: Reporter,
    verdict: Verdict | None,
) -> FitResult:
    config: Any = resolved.config
    free = RESUMABLE | family.free
    require_end(config.train)
    group.every(lambda: shards_of(group.rank, group.size, config.train.shards))
    group.require_equal({"config": config})
    resolved = _of_first(group, resolved, lambda asked: kept_precisions(asked, folder))
    group.share(lambda: require_same_config(folder, resolved, resumable_keys=free))
    config = family.local(resolved.config, folder)
    device = configure_device(config.train)
    if group.size > 1 and device.type == "cuda":
        raise ConfigError('train.device: several processes train on the CPU only; set train.device="cpu"')
    codec, data = group.every(lambda: family.load(config, folder))  # before the folder is made
    begun = group.share(lambda: CheckpointStore.of(folder).begun)  # other ranks may not have the folder
    if not begun:
        group.every(lambda: family.check(config, codec))
    words = len(codec.vocabulary)
    described = family.describe(config, words)
    group.every(
        lambda: require_memory(processes_here() * family.needed(described["memory"]), device, family.remedy)
    )
    sizes = described["vocabulary"], described["sizes"]["contexts"]
    resolved = _of_first(
        group, resolved, lambda asked: measured_precisions(asked, sizes, device, folder, report)
    )
    config = family.local(resolved.config, folder)
    seed_everything(config.train.seed)
    place = Place(folder, device, described, begun)
    ready = group.every(lambda: family.task(config, codec, data, place))
    busy = load_note() if device.type == "cpu" else ""
    for note in filter(None, (busy, *ready.notes, *notes_on_max_steps(config.train, config.optim))):
        report(Note(note))
    hashes = {**ready.hashes, CODEC_HASH: codec.fingerprint}
    group.require_equal(hashes)
    # before the run is opened, which saves its config
    _require_unchanged(config, group.share(lambda: changed_inputs(folder, hashes)))
    with _opened(group, folder, resolved, free) as run:
        changed = group.share(lambda: save_inputs(folder, codec, hashes, ready.files, config.data.train))
        _require_unchanged(config, changed)
        limits, trained = (config.train, config.optim), ready.trained
        result = fit(ready.task, *limits, run, report, verdict, words, group, trained=trained)
    require_learnt(result.best_nll, words, folder)
    return result


@contextmanager
def _opened(
    group: Group, folder: Path, resolved: Resolved[C], keys: frozenset[str]
) -> Iterator[Run | Follower]:
    """The run folder on rank 0, only signal handling on other ranks."""
    runs: list[Run] = []
    group.share(lambda: runs.append(Run.open(folder, resolved, resumable_keys=keys)))
    with runs[0] if runs else Follower() as run:
        yield run


def _of_first(
    group: Group, resolved: Resolved[C], choose: Callable[[Resolved[C]], Resolved[C]]
) -> Resolved[C]:
    """The config with rank 0's choices and their provenance, on every rank."""

    def choices() -> dict[str, list[JSON]]:
        chosen, before = choose(resolved), flat_config(resolved.config)
        now = flat_config(chosen.config).items()
        return {key: [value, chosen.provenance[key]] for key, value in now if value != before[key]}

    changes = {key: Setting(*choice) for key, choice in group.share(choices).items()}
    return with_settings(resolved, changes, type(resolved.config)) if changes else resolved


def start_with_vectors(
    embedding: torch.nn.Embedding, path: str, codec: Codec, place: Place
) -> WordVectors | None:
    """Overwrite rows of the embedding of a new run with word vectors of a file.

    Returns what was read; None without a file, or if the run has weights already. Raises DataError
    as :func:`lm.text.vectors.read_vectors` does.
    """
    if not path or place.begun:
        return None
    weight = embedding.weight
    vectors = read_vectors(Path(path), codec.vocabulary, weight.shape[1])
    with torch.no_grad():
        weight[torch.from_numpy(vectors.ids)] = torch.from_numpy(vectors.matrix).to(weight)
    return vectors


def _require_unchanged(config: Any, changed: Sequence[str]) -> None:
    """Raise DataError for the first input whose hash has changed since the run began."""
    for name in changed:
        raise DataError(_changed(config, name))


def _changed(config: Any, name: str) -> str:
    what = f"{config.data.valid if name == 'valid_sha256' else config.data.train}: the text"
    if name == START_HASH:
        what = f"{config.train.start_from}: the best checkpoint"
    if name == TRUNK_HASH:
        what = f"{config.model.trunk}: the weights of the pretrained model"
    if name == VECTORS_HASH:
        what = f"{config.model.vectors}: the file of word vectors"
    return f"{what} changed since this run began; restore it, or train into another folder with --run"
