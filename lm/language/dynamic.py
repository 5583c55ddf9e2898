"""Dynamic evaluation of a run: resumable statistics, an optional search, and the result.

``RUN/dynamic`` holds the statistics of the training data, committed like checkpoints, and the results of
searches (:mod:`lm.language.setting_search`). Each file names its weights and texts by hash, and is rebuilt
for other weights or texts.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from lm.arrays import Floats
from lm.config.named_data import split_of_run
from lm.disk.filelock import exclusive
from lm.disk.jsonfile import JSON
from lm.disk.storage import make_folder, move, remove_tree, sync
from lm.disk.tensors import sha256_of
from lm.engine.device import flushed_denormals
from lm.errors import require, visible
from lm.language.adaptation import (
    ADAPT_LENGTH,
    DYNAMIC_SETTINGS,
    STREAMS,
    Adaptation,
    DynamicSetting,
    Statistics,
    gather,
    scored_parameters,
)
from lm.language.cache import cached_nll
from lm.language.corpora.corpus import load_split
from lm.language.evaluate import (
    NONE,
    Measures,
    Text,
    likelihood,
    load_text,
    own_test,
    subject_of,
)
from lm.language.model import LanguageModel
from lm.language.refinements import Refinements, refined
from lm.language.results import Compat, Likelihood, LmEvaluation
from lm.language.scoring import token_nll
from lm.language.setting_search import NUMBERS, SearchedSettings, SettingSearch, choose, unusual
from lm.language.trained import TrainedLm
from lm.numbers import shortest
from lm.results import Merged
from lm.runs.checkpoint import CheckpointStore
from lm.runs.evaluations import keep, loaded, require_keepable, setting_slug
from lm.steps import OnProgress, Steps, no_progress
from lm.stop import StopFlag

DYNAMIC_FOLDER = "dynamic"
COMMIT_SECONDS = 60.0  # between commits of unfinished statistics


@dataclass(frozen=True)
class StatisticsOf:
    """Text of the statistics of gradients, and their numbers of windows, streams and tensors."""

    source: str
    windows: int
    streams: int
    tensors: int


@dataclass(frozen=True, kw_only=True)
class DynamicEvaluation(LmEvaluation):
    """Dynamic evaluation of a model, the setting in both scalings, and its static likelihood."""

    method: Literal["dynamic"] = "dynamic"
    label: str
    setting: DynamicSetting
    setting_normalised: DynamicSetting
    statistics: StatisticsOf
    static: Likelihood
    search: Merged[SearchedSettings | None]


@flushed_denormals()
def dynamic(
    run: Path,
    data: str | None = None,
    checkpoint: str = "best",
    setting: DynamicSetting = DYNAMIC_SETTINGS["default"],
    search: SettingSearch | None = None,
    wanted: Refinements = NONE,
    limit: int | None = None,
    compat: Compat | None = None,
    progress: OnProgress = no_progress,
) -> DynamicEvaluation:
    """Evaluate a run dynamically and keep the result in the run.

    Args:
        run, data, checkpoint, limit, compat: as for :func:`lm.language.evaluate.evaluate`.
        setting: η, λ and ε. :data:`lm.language.adaptation.DYNAMIC_SETTINGS` has those of the papers.
        search: choose a setting on the run's validation split first. ``data`` is evaluated once, with the
            best.
        wanted: refinements to report, as in Melis et al. (2020). The temperature is that of static
            evaluation. Each pass with dropout adapts a model of its own. A cache has the states of the
            adapted model.
        progress: called with the progress of each part: of the statistics and of every text.

    Raises:
        ConfigError, DataError, StorageError: as for :func:`lm.language.evaluate.evaluate`. StorageError also
            if another process gathers statistics or searches in the same run.
        DivergenceError: a loss is not finite, or every setting of the search diverges.
        Interrupted: a signal while statistics are gathered. Partial statistics are kept.
    """
    trained, weights = loaded(run, checkpoint, TrainedLm.load)
    require_keepable(run)
    config = trained.config
    text = load_text(trained, data or own_test(trained.config), limit)
    compat = compat or config.train.compat
    label = search.label(setting) if search else _label(setting)
    sampler = wanted.sampler(trained.model)
    wanted.require_searched(trained)
    tried: SearchedSettings | None = None
    valid = load_text(trained, split_of_run(config.data, "valid"), limit) if search else None
    with _alone_in(run / DYNAMIC_FOLDER):
        statistics, key = run_statistics(
            trained, run, setting.window, compat == "paper", progress, setting.streams
        )
        if search and valid is not None:
            setting, tried = choose(
                search, setting, trained, statistics, valid, run / DYNAMIC_FOLDER, key, progress
            )
    adapted = Adaptation(trained, statistics, setting, compat == "paper")
    static, found = _measured(adapted, text, wanted, sampler, progress)
    place = text.name_at(checkpoint)
    windows, tensors = statistics.windows, len(statistics.squares)
    result = DynamicEvaluation(
        subject=subject_of(trained, run, checkpoint, weights, text),
        components=config.head.components,
        compat=compat,
        vocabulary=len(trained.codec.vocabulary),
        label=label,
        setting=setting,
        setting_normalised=setting.normalised(windows, tensors),
        statistics=StatisticsOf(config.data.train, windows, setting.streams, tensors),
        static=likelihood(static, trained, text),
        likelihood=found.likelihood,
        search=tried,
        refined=found.refined,
        name=f"{place}.dynamic.{setting_slug(label)}{wanted.name}" + (".paper" if adapted.paper else ""),
    )
    return keep(run, result, found.contexts)


def _measured(
    adapted: Adaptation, text: Text, wanted: Refinements, sampler: LanguageModel | None, progress: OnProgress
) -> tuple[Floats, Measures]:
    """Nats of every token by the fixed weights, (N,), and what adapting ones measure."""
    trained, paper = adapted.trained, adapted.paper
    advance = Steps((1 + wanted.passes) * len(text.ids), progress).advance

    def scores(model: LanguageModel | None = None, temperature: float = 1.0) -> Floats:
        return replace(adapted, sampler=model, temperature=temperature).nll(text.ids, advance)

    static = token_nll(trained, text.ids, paper=paper, advance=advance)
    nll = scores()  # first: its errors name the remedy if adapting diverges
    cached = partial(
        cached_nll, trained, text.ids, readings=adapted.readings, advance=advance, progress=progress
    )
    return static, Measures.of(
        nll,
        refined(trained, wanted, sampler, scores, cached, paper=paper),
        lambda nll: likelihood(nll, trained, text, len(nll)),  # the authors weight windows by their lengths
    )


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Create a folder and lock it against other processes. StorageError if another process holds the lock."""
    make_folder(folder)
    refusal = f"{visible(folder)}: another `lm dynamic` is writing it; wait for it to end"
    with exclusive(folder / "lock", refusal):
        for path in sorted(folder.glob("*.tmp")):  # of a process that was killed
            remove_tree(path)
        yield


def run_statistics(
    trained: TrainedLm,
    run: Path,
    window: int = ADAPT_LENGTH,
    paper: bool = False,
    progress: OnProgress = no_progress,
    streams: int = STREAMS,
) -> tuple[Statistics, dict[str, JSON]]:
    """Statistics over the run's training data and their key. Stored in the run, and resumed if incomplete.

    StorageError if all stored statistics are damaged, or if they cannot be written.
    """
    split = load_split(split_of_run(trained.config.data, "train"), trained.codec)
    tokens, rows = max(map(len, split.files), default=0), 2 + paper  # of a file, and of a stream
    require(
        rows * streams <= tokens,
        f"--streams {streams}: {trained.config.data.train} has too few tokens ({tokens:,} in its longest"
        f" file); give {max(1, tokens // rows):,} or fewer streams",
    )
    key: dict[str, JSON] = {
        "weights_sha256": sha256_of(trained.model.named_parameters()),
        "train_sha256": split.fingerprint,
        "streams": streams,
        "window": window,
        "paper": paper,
    }
    store = CheckpointStore(run / DYNAMIC_FOLDER / "statistics")
    store.clean()
    statistics = _kept(store, key, trained, streams)
    saved = time.monotonic()

    def commit() -> None:
        nonlocal saved
        groups = {"squares": statistics.squares, "state": statistics.state.tensors()}
        store.commit(statistics.windows, groups, {"of": key}, {})
        store.prune({statistics.windows})
        saved = time.monotonic()

    def commit_at_times() -> None:
        if stop or time.monotonic() - saved >= COMMIT_SECONDS:
            commit()
        stop.check()

    before = statistics.windows
    with StopFlag() as stop:
        gather(
            trained, split.files, statistics, window, paper=paper, progress=progress, commit=commit_at_times
        )
        if statistics.windows > before:
            commit()
        stop.check()
    return statistics, key


def _kept(store: CheckpointStore, key: Mapping[str, JSON], trained: TrainedLm, streams: int) -> Statistics:
    """The stored statistics of a run with this key, else empty ones."""
    commit = store.latest()
    if commit is not None and commit.state.get("of") == key:
        store.prune({commit.step})  # a power failure may have come before this
        squares = {name: tensor.to(trained.device) for name, tensor in commit.tensors("squares").items()}
        state = trained.model.state_from(commit.tensors("state"), trained.device)
        return Statistics(
            {name: squares[name] for name in scored_parameters(trained.model)}, state, commit.step
        )
    discarded = store.folder.with_name(f"{store.folder.name}.tmp")  # half deleted, it would count as damaged
    if store.folder.exists():
        move(store.folder, discarded)
        sync(store.folder.parent)
    remove_tree(discarded)
    return Statistics.empty(trained.model, streams)


def _label(setting: DynamicSetting) -> str:
    """The name of a setting, or its numbers if it has none."""
    numbers = [f"{name}-{shortest(getattr(setting, name))}" for name in NUMBERS]
    name = next((name for name, known in DYNAMIC_SETTINGS.items() if known == setting), "")
    return name or "-".join([*numbers, *unusual(setting)])
