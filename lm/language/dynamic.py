"""Dynamic evaluation of a run: statistics that are kept and resumed, a grid search, and the result.

``RUN/dynamic`` holds the statistics of the training data, committed as checkpoints are, and the results of
the grid. Both belong to weights and texts that they name by hash, and are made anew for others.
"""

import fcntl
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lm.checkpoint import CheckpointStore
from lm.errors import ConfigError, DivergenceError, Interrupted, StorageError
from lm.language.adaptation import (
    ADAPT_LENGTH,
    GRID_DECAY,
    GRID_LR,
    SETTINGS,
    STREAMS,
    Setting,
    Statistics,
    dynamic_nll,
    gather,
)
from lm.language.corpus import load_split
from lm.language.evaluate import Compat, Text, blocks, facts, likelihood, load_text
from lm.language.model import state_from, state_tensors
from lm.language.scoring import token_nll
from lm.language.trained import TrainedLm, weights_sha256
from lm.lines import visible
from lm.records import keep, plain
from lm.stop import Poll, Progress, Steps, no_poll, no_progress
from lm.storage import JSON, make_folder, move, read_json, remove_tree, storage_errors, write_json

Result = dict[str, Any]

FOLDER = "dynamic"
COMMIT_SECONDS = 60.0  # between commits of unfinished statistics


def dynamic(
    run: Path,
    data: str | None = None,
    checkpoint: str = "best",
    setting: Setting = SETTINGS["default"],
    grid: bool = False,
    limit: int | None = None,
    compat: Compat | None = None,
    poll: Poll = no_poll,
    progress: Progress = no_progress,
    changed: Collection[str] = (),
) -> Result:
    """Evaluate a run dynamically and keep the result in the run.

    Args:
        run, data, checkpoint, limit, compat, poll: as for :func:`lm.language.evaluate.evaluate`.
        setting: η, λ and ε; :data:`lm.language.adaptation.SETTINGS` has those of the papers.
        grid: choose η and λ on the run's validation split from the published grid first, in place of the
            setting's; ε and window are the setting's. The chosen ones are then evaluated on ``data``, once.
        progress: told how much of each part is done: of the statistics, of every text.
        changed: fields of ``setting`` that were asked for one by one, which a grid must not override.

    Raises:
        ConfigError, DataError, StorageError: as for :func:`lm.language.evaluate.evaluate`; ConfigError also
            where a grid would override what was asked for, StorageError where another process gathers
            statistics or searches a grid in the same run.
        DivergenceError: a loss is not finite, or all of the grid's are.
        Interrupted: by ``poll``; statistics and finished settings of the grid are kept.
    """
    if grid and (overridden := [name for name in ("lr", "decay") if name in changed]):
        names = " ".join(f"--{name}" for name in overridden)
        raise ConfigError(f"{names}: --grid chooses lr and decay itself; leave out {names} or --grid")
    trained = TrainedLm.load(run, checkpoint)
    config = trained.config
    text = load_text(trained, data or config.data.test, limit, poll)
    compat = compat or config.train.compat
    paper = compat == "paper"
    label = _grid_label(setting) if grid else _label(setting)
    result: Result = {}
    with _alone_in(run / FOLDER):
        statistics, key = run_statistics(trained, run, setting.window, paper, poll, progress, setting.streams)
        if grid:
            valid = load_text(trained, config.data.valid, limit, poll)
            search = _Grid(trained, statistics, valid, run / FOLDER / "grid.json", key)
            setting, result["grid"] = search.best(setting, poll, progress)
            result["grid_on"] = valid.source
    advance = Steps(2 * len(text.ids), poll, progress).advance
    static = token_nll(trained, text.ids, paper=paper, advance=advance)
    nll = dynamic_nll(trained, text.ids, statistics, setting, paper=paper, advance=advance)
    result = {
        **facts(trained, run, checkpoint, text, compat),
        "method": "dynamic",
        "label": label,
        "setting": asdict(setting),
        "setting_normalised": asdict(setting.normalised(statistics.windows, len(statistics.squares))),
        "statistics": {
            "source": config.data.train,
            "windows": statistics.windows,
            "streams": setting.streams,
            "tensors": len(statistics.squares),
        },
        "static": likelihood(static, trained, text),
        **likelihood(nll, trained, text, len(nll)),  # the authors weight windows by their lengths
        **result,
    }
    parts = [text.name, *([] if checkpoint == "best" else [plain(checkpoint)]), "dynamic", plain(label)]
    keep(run, ".".join([*parts, *(["paper"] if paper else [])]), result, blocks(nll))
    return result


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Within, no other process is so in the folder, which is made; StorageError where one is."""
    make_folder(folder)
    with storage_errors(folder):
        lock = os.open(folder, os.O_RDONLY)
    try:
        with storage_errors(folder):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StorageError(
                    f"{visible(folder)}: another `lm dynamic` is writing it; wait for it to end"
                ) from error
            leftovers = sorted(folder.glob("*.tmp"))  # of a process that was killed
        for path in leftovers:
            remove_tree(path)
        yield
    finally:
        os.close(lock)


def run_statistics(
    trained: TrainedLm,
    run: Path,
    window: int = ADAPT_LENGTH,
    paper: bool = False,
    poll: Poll = no_poll,
    progress: Progress = no_progress,
    streams: int = STREAMS,
) -> tuple[Statistics, dict[str, JSON]]:
    """The statistics over the run's training data, and what they are of; kept in the run, and gone on with.

    StorageError where those that are kept are all damaged, or cannot be written.
    """
    split = load_split(trained.config.data.train, trained.codec, poll)
    key: dict[str, JSON] = {
        "weights_sha256": weights_sha256(trained.model),
        "train_sha256": split.fingerprint,
        "streams": streams,
        "window": window,
        "paper": paper,
    }
    store = CheckpointStore(run / FOLDER / "statistics")
    store.clean()
    statistics = _kept(store, key, trained, streams)
    saved = time.monotonic()

    def commit() -> None:
        nonlocal saved
        groups = {"squares": statistics.squares, "state": state_tensors(statistics.state)}
        store.commit(statistics.windows, groups, {"of": key}, {})
        store.prune({statistics.windows})
        saved = time.monotonic()

    def commit_at_times() -> None:
        if time.monotonic() - saved >= COMMIT_SECONDS:
            commit()

    before = statistics.windows
    try:
        gather(
            trained,
            split.shards,
            statistics,
            window,
            paper=paper,
            poll=poll,
            progress=progress,
            commit=commit_at_times,
        )
    except Interrupted:
        if statistics.windows > before:
            commit()
        raise
    if statistics.windows > before:
        commit()
    return statistics, key


def _kept(store: CheckpointStore, key: Mapping[str, JSON], trained: TrainedLm, streams: int) -> Statistics:
    """The statistics that a run keeps, or empty ones where it has none or those of something else."""
    commit = store.latest()
    if commit is not None and commit.state.get("of") == key:
        squares = {name: tensor.to(trained.device) for name, tensor in commit.tensors("squares").items()}
        order = [name for name, _ in trained.model.named_parameters()]
        state = state_from(commit.tensors("state"), trained.device)
        return Statistics({name: squares[name] for name in order}, state, commit.step)
    discarded = store.folder.with_name(f"{store.folder.name}.tmp")  # half deleted, it would count as damaged
    if store.folder.exists():
        move(store.folder, discarded)
    remove_tree(discarded)
    return Statistics.empty(trained.model, streams)


class _Grid:
    """Every η and λ of the published grid on the validation split; what is finished is kept in a file."""

    def __init__(
        self, trained: TrainedLm, statistics: Statistics, valid: Text, path: Path, key: Mapping[str, JSON]
    ) -> None:
        self._trained, self._statistics, self._valid, self._path = trained, statistics, valid, path
        self._key: Result = {
            **key,
            "valid_sha256": valid.sha256,
            "tokens": len(valid.ids) - bool(key["paper"]),
        }

    def best(self, base: Setting, poll: Poll, progress: Progress) -> tuple[Setting, list[Result]]:
        """The best setting and the results of all; one that diverges has none. DivergenceError if all do."""
        settings = grid_settings(base, self._statistics)
        key = self._key | {"eps": settings[0].eps}
        rows = self._finished(key)
        tokens = len(self._valid.ids)
        advance = Steps(tokens * (len(settings) - len(rows)), poll, progress).advance
        for setting in settings[len(rows) :]:
            try:
                nll = dynamic_nll(
                    self._trained,
                    self._valid.ids,
                    self._statistics,
                    setting,
                    paper=key["paper"],
                    advance=advance,
                )
                measured = likelihood(nll, self._trained, self._valid, len(nll))
                row = {name: measured[name] for name in ("nll", "perplexity")}
            except DivergenceError:
                row = {"nll": None, "perplexity": None}
            rows.append({"lr": setting.lr, "decay": setting.decay, "eps": setting.eps, **row})
            write_json(self._path, {"of": key, "results": rows})
        found = [(row["nll"], place) for place, row in enumerate(rows) if row["nll"] is not None]
        if not found:
            raise DivergenceError("dynamic evaluation diverges with every setting of the grid; raise --eps")
        return settings[min(found)[1]], rows

    def _finished(self, key: Result) -> list[Result]:
        """The results of an earlier search of the same, as far as it came."""
        with suppress(StorageError, KeyError, TypeError):
            record: Any = read_json(self._path)
            if record["of"] == key:
                return list(record["results"])
        return []


def grid_settings(base: Setting, statistics: Statistics) -> list[Setting]:
    """The published grid: every η with every λ, both in proportion to the window, with the ε of ``base``.

    None is in original scaling, whichever ``base`` is in.
    """
    factor = base.window / ADAPT_LENGTH
    base = base.normalised(statistics.windows, len(statistics.squares))
    return [replace(base, lr=lr * factor, decay=decay * factor) for lr in GRID_LR for decay in GRID_DECAY]


def _label(setting: Setting) -> str:
    """The name of a setting, or its numbers where it has none."""
    named = [name for name, known in SETTINGS.items() if known == setting]
    numbers = [f"{name}-{getattr(setting, name):g}" for name in ("lr", "decay", "eps")]
    return named[0] if named else "-".join([*numbers, *_unusual(setting)])


def _grid_label(setting: Setting) -> str:
    """What distinguishes a grid from others: ε, window and streams, where they are not the usual ones."""
    usual = SETTINGS["default"]
    same = (setting.eps, setting.scaling) == (usual.eps, usual.scaling)
    return "-".join(["grid", *([] if same else [f"eps-{setting.eps:g}"]), *_unusual(setting)])


def _unusual(setting: Setting) -> list[str]:
    window = [] if setting.window == ADAPT_LENGTH else [f"window-{setting.window}"]
    streams = [] if setting.streams == STREAMS else [f"streams-{setting.streams}"]
    return [*window, *streams, *([] if setting.scaling == "normalised" else [setting.scaling])]
