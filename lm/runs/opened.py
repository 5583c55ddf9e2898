"""Models of runs that an analysis opens one after another. Imports nothing heavy."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from lm.config.load import C
from lm.errors import ConfigError, DataError, DivergenceError, StorageError, visible

M = TypeVar("M")  # a trained model of either family


@dataclass(frozen=True)
class Opened(Generic[M]):
    """A model at a checkpoint of a run, its name in results, and the fingerprint of its weights."""

    run: Path
    name: str
    checkpoint: str
    fingerprint: str | None  # see CheckpointStore.fingerprint
    trained: M


def opened_models(
    runs: Sequence[Path], checkpoint: str, every: bool, load: Callable[[Path, str], M]
) -> Iterator[Opened[M]]:
    """Yield one checkpoint of each run, or ``every`` stored one."""
    from lm.runs.evaluations import loaded

    for run in runs:
        for which in checkpoints_of(run) if every else [checkpoint]:
            trained, fingerprint = loaded(run, which, load)
            yield Opened(run, f"{run} {which}" if every else str(run), which, fingerprint, trained)


def checkpoints_of(run: Path) -> list[str]:
    """Names of all intact checkpoints of a run, the oldest first. Raises StorageError if there is none."""
    from lm.runs.checkpoint import CheckpointStore

    store = CheckpointStore.of(run)
    intact = [f"step-{report.step}" for report in reversed(store.verify_all()) if not report.problem]
    if not intact and store.latest() is None:  # it raises where all are damaged
        raise StorageError(f"{run}: no checkpoint yet; train the run first")
    return intact


def require_runs(
    runs: Sequence[Path], schema: type[C], check: Callable[[Path, C], object] | None = None
) -> None:
    """Read the config of every run, and ``check`` it, before any is loaded.

    StorageError for a path that is no run. A ConfigError or DataError of ``check`` is raised with the name of
    its run.
    """
    from lm.runs.inputs import config_of

    for run in runs:
        config = config_of(run, schema).config
        try:
            if check is not None:
                check(run, config)
        except (ConfigError, DataError) as error:
            raise type(error)(f"{visible(run)}: {error}") from None


@contextmanager
def naming(opened: Opened[M], text: str | None = None) -> Iterator[None]:
    """Context manager: errors of a config, of data, or of a diverged model name the model.

    Those of another ``text`` than the run's own split name that already.
    """
    try:
        yield
    except (ConfigError, DataError, DivergenceError) as error:
        if text:
            raise
        raise type(error)(f"{visible(opened.name)}: {error}") from None
