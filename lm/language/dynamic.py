"""Dynamic evaluation of a run: resumable statistics, an optional search, and the result.

``RUN/dynamic`` holds the statistics of the training data, committed like checkpoints, and the results of
searches (:mod:`lm.language.setting_search`). Each file names its weights and texts by hash, and is rebuilt
for other weights or texts.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from lm.disk.filelock import alone
from lm.disk.storage import JSON, make_folder, move, remove_tree
from lm.errors import require, visible
from lm.language.adaptation import (
    ADAPT_LENGTH,
    DYNAMIC_SETTINGS,
    STREAMS,
    DynamicSetting,
    Statistics,
    dynamic_nll,
    gather,
)
from lm.language.corpus import load_split
from lm.language.evaluate import (
    NONE,
    Compat,
    blocks,
    command_line,
    compat_option,
    facts,
    likelihood,
    load_text,
)
from lm.language.model import LanguageModel
from lm.language.refinements import Refinements, refined
from lm.language.scoring import Floats, token_nll
from lm.language.setting_search import NUMBERS, SettingSearch, choose, unusual
from lm.language.trained import TrainedLm, weights_sha256
from lm.runs.checkpoint import CheckpointStore
from lm.runs.evaluations import Result, keep, loaded, require_keepable, slug
from lm.steps import OnProgress, Steps, no_progress
from lm.stop import StopFlag

DYNAMIC_FOLDER = "dynamic"
COMMIT_SECONDS = 60.0  # between commits of unfinished statistics


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
) -> Result:
    """Evaluate a run dynamically and keep the result in the run.

    Args:
        run, data, checkpoint, limit, compat: as for :func:`lm.language.evaluate.evaluate`.
        setting: η, λ and ε. :data:`lm.language.adaptation.DYNAMIC_SETTINGS` has those of the papers.
        search: choose a setting on the run's validation split first. ``data`` is evaluated once, with the
            best.
        wanted: refinements to report, as in Melis et al. (2020). The temperature is that of static
            evaluation. Each pass with dropout adapts a model of its own.
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
    text = load_text(trained, data or config.data.test, limit)
    compat = compat or config.train.compat
    words = [*_setting_options(setting, search), *wanted.options, *compat_option(compat, config.train.compat)]
    command = command_line("dynamic", [run], data, checkpoint, limit, words)
    paper = compat == "paper"
    label = search.label(setting) if search else _label(setting)
    sampler = wanted.sampler(trained.model)
    result: Result = {}
    with _alone_in(run / DYNAMIC_FOLDER):
        statistics, key = run_statistics(trained, run, setting.window, paper, progress, setting.streams)
        if search:
            valid = load_text(trained, config.data.valid, limit)
            setting, result["searched"] = choose(
                search, setting, trained, statistics, valid, run / DYNAMIC_FOLDER, key, progress
            )
            result |= {"searched_by": search.option, "searched_on": valid.source}
    advance = Steps((1 + wanted.passes) * len(text.ids), progress).advance

    def scores(model: LanguageModel | None = None, temperature: float = 1.0) -> Floats:
        return dynamic_nll(
            trained,
            text.ids,
            statistics,
            setting,
            paper=paper,
            temperature=temperature,
            sampler=model,
            advance=advance,
        )

    static = token_nll(trained, text.ids, paper=paper, advance=advance)
    nll = scores()
    contexts = blocks(nll)
    result = {
        **facts(trained, run, checkpoint, weights, text, compat),
        "method": "dynamic",
        "label": label,
        **_setting_facts(setting, statistics, config.data.train),
        "static": likelihood(static, trained, text),
        **likelihood(nll, trained, text, len(nll)),  # the authors weight windows by their lengths
        **result,
    }
    for kind, (about, other) in refined(trained, wanted, sampler, scores, paper=paper).items():
        result[kind] = about | likelihood(other, trained, text, len(other))
        contexts[kind] = blocks(other)["nll"]
    parts = [text.name, *([] if checkpoint == "best" else [slug(checkpoint)]), "dynamic", slug(label)]
    name = ".".join(parts) + wanted.name
    keep(run, f"{name}.paper" if paper else name, result, contexts, {"command": command})
    return result


def _setting_options(setting: DynamicSetting, search: SettingSearch | None) -> list[str]:
    """Options of ``lm dynamic`` that give a setting and a search."""
    searched = [] if search is None else search.options
    if name := _name(setting):
        return [*([] if name == "default" else ["--setting", name]), *searched]
    usual, now = asdict(DYNAMIC_SETTINGS["default"]), asdict(setting)
    chosen = () if search is None else search.chooses
    changed = [key for key in now if now[key] != usual[key] and key not in chosen]
    return [*(word for key in changed for word in (f"--{key}", str(now[key]))), *searched]


def _setting_facts(setting: DynamicSetting, statistics: Statistics, source: str) -> Result:
    """The setting in both scalings, and the source of the statistics."""
    windows, tensors = statistics.windows, len(statistics.squares)
    return {
        "setting": asdict(setting),
        "setting_normalised": asdict(setting.normalised(windows, tensors)),
        "statistics": {"source": source, "windows": windows, "streams": setting.streams, "tensors": tensors},
    }


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Create a folder and lock it against other processes. StorageError if another process holds the lock."""
    make_folder(folder)
    refusal = f"{visible(folder)}: another `lm dynamic` is writing it; wait for it to end"
    with alone(folder / "lock", refusal):
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
    split = load_split(trained.config.data.train, trained.codec)
    tokens = sum(len(shard) for shard in split.shards)
    require(
        2 * streams <= tokens,
        f"--streams {streams}: {trained.config.data.train} has too few tokens ({tokens:,});"
        f" give {max(1, tokens // 2):,} or fewer streams",
    )
    key: dict[str, JSON] = {
        "weights_sha256": weights_sha256(trained.model),
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
            trained, split.shards, statistics, window, paper=paper, progress=progress, commit=commit_at_times
        )
        if statistics.windows > before:
            commit()
        stop.check()
    return statistics, key


def _kept(store: CheckpointStore, key: Mapping[str, JSON], trained: TrainedLm, streams: int) -> Statistics:
    """The stored statistics of a run with this key, else empty ones."""
    commit = store.latest()
    if commit is not None and commit.state.get("of") == key:
        squares = {name: tensor.to(trained.device) for name, tensor in commit.tensors("squares").items()}
        order = [name for name, _ in trained.model.named_parameters()]
        state = trained.model.state_from(commit.tensors("state"), trained.device)
        return Statistics({name: squares[name] for name in order}, state, commit.step)
    discarded = store.folder.with_name(f"{store.folder.name}.tmp")  # half deleted, it would count as damaged
    if store.folder.exists():
        move(store.folder, discarded)
    remove_tree(discarded)
    return Statistics.empty(trained.model, streams)


def _label(setting: DynamicSetting) -> str:
    """The name of a setting, or its numbers if it has none."""
    numbers = [f"{name}-{getattr(setting, name):g}" for name in NUMBERS]
    return _name(setting) or "-".join([*numbers, *unusual(setting)])


def _name(setting: DynamicSetting) -> str:
    """The name of a known setting, else an empty string."""
    return next((name for name, known in DYNAMIC_SETTINGS.items() if known == setting), "")
