"""The evaluations that a run keeps: ``RUN/evaluation/<name>.json``.

A record is ``{"format", "result", "contexts", "sha256"}``: the result that was shown, the numbers that it
is a sum of, column by column, which comparisons resample, and the hash of the rest, which older ones lack.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self, TypeVar

from lm.disk.storage import (
    canonical_json,
    is_sealed,
    make_folder,
    read_json,
    remove_leftovers,
    require_space,
    require_writable,
    sealed,
    write_atomic,
)
from lm.errors import ConfigError, DataError, StorageError, visible
from lm.runs.checkpoint import CheckpointStore

Result = dict[str, Any]
T = TypeVar("T")

EVALUATION_FORMAT = 1
EVALUATIONS = "evaluation"
_ROOM = 1 << 20  # bytes that a result may need on the disk


@dataclass(frozen=True)
class Subject:
    """Model, weights and data of an evaluation: the fields that results of both families share."""

    run: str
    checkpoint: str
    weights: str | None
    head: str
    parameters: int
    device: str
    seed: int
    data: Result
    tokenizer: str
    vocabulary_sha256: str

    @classmethod
    def of(cls, trained: Any, run: Path, checkpoint: str, weights: str | None, data: Result) -> Self:
        """The subject of an evaluation of a loaded model of either family."""
        return cls(
            run=str(run),
            checkpoint=checkpoint,
            weights=weights,
            head=trained.config.head.kind,
            parameters=sum(parameter.numel() for parameter in trained.model.parameters()),
            device=str(trained.device),
            seed=trained.config.train.seed,
            data=data,
            tokenizer=trained.codec.tokenizer.kind,
            vocabulary_sha256=trained.codec.fingerprint,
        )

    @classmethod
    def read(cls, result: Result) -> Self:
        """The subject that a result has; a field that older results lack is None."""
        values: dict[str, Any] = {field.name: result.get(field.name) for field in fields(cls)}
        return cls(**values)

    def json(self) -> Result:
        """The fields as a result has them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Evaluation:
    """An evaluation that a run has kept."""

    run: str
    result: Result
    contexts: Result

    @property
    def subject(self) -> Subject:
        return Subject.read(self.result)


def slug(text: str) -> str:
    """A text as a part of a file name."""
    return re.sub(r"[^\w.-]+", "-", text).strip(".-") or "data"


def loaded(run: Path, checkpoint: str, load: Callable[[Path, str], T]) -> tuple[T, str | None]:
    """What ``load`` makes of a run, and a fingerprint of the weights in it.

    Where training gives other weights the name ``checkpoint`` meanwhile, it is loaded again.
    """
    store = CheckpointStore(run / "checkpoints")
    while True:
        weights = store.fingerprint(checkpoint)
        trained = load(run, checkpoint)
        if store.fingerprint(checkpoint) == weights:
            return trained, weights


def opened(run: Path, checkpoint: str, load: Callable[[Path, str], T]) -> tuple[T, str | None]:
    """As :func:`loaded`, for ``result["weights"]``; StorageError where :func:`keep` could not write later."""
    trained, weights = loaded(run, checkpoint, load)
    folder = run / EVALUATIONS
    require_space(run, _ROOM)
    require_writable((folder if folder.is_dir() else run) / "evaluation.json")
    return trained, weights


def keep(run: Path, name: str, result: Result, contexts: Result) -> None:
    """Write an evaluation into its run, its name added to the result.

    The evaluation of the same name is replaced if it is of the same data; beside one of other data the new
    one gets six digits of the data's hash. StorageError where it cannot be written.
    """
    folder = run / EVALUATIONS
    make_folder(folder)
    remove_leftovers(folder)
    if _data_of(folder / f"{name}.json") not in (None, result["data"]["sha256"]):
        name = f"{name}.{result['data']['sha256'][:6]}"
    result["name"] = name
    record: Result = {"format": EVALUATION_FORMAT, "result": result, "contexts": contexts}
    write_atomic(folder / f"{name}.json", canonical_json(sealed(record)) + b"\n")


def load_evaluation(
    run: Path, name: str, needed: Sequence[Sequence[str]], columns: Sequence[Sequence[str]], program: str
) -> Evaluation:
    """Read what :func:`keep` wrote.

    Args:
        needed: keys, from the outermost on, that the record must have.
        columns: keys of lists in its contexts, which must be of one length.
        program: ``dialog`` or ``lm``, for remedies.

    Raises:
        DataError: the run has no such evaluation, or other weights since.
        StorageError: it is damaged.
    """
    path = run / EVALUATIONS / f"{name}.json"
    known = evaluation_names(run)
    again = f"run `{program} evaluate` again"
    if name not in known:
        others = ", ".join(known) or "none"
        raise DataError(
            f"{run}: has no evaluation {name} (it has: {others}); run `{program} evaluate` on it first"
        )
    record = read_json(path)
    if not isinstance(record, dict) or record.get("format") != EVALUATION_FORMAT:
        raise StorageError(f"{path}: not an evaluation of ours; {again}")
    if damaged(record):
        raise StorageError(f"{path}: edited or damaged; {again}")
    result, contexts = record.get("result"), record.get("contexts")
    if not isinstance(result, dict) or not isinstance(contexts, dict):
        raise StorageError(f"{path}: damaged; {again}")
    for keys in (*needed, *(("contexts", *column) for column in columns)):
        if lookup(record, keys) is None:
            raise StorageError(f"{path}: has no {'.'.join(keys)}; {again}")
    lists = [lookup(contexts, column) for column in columns]
    if not all(isinstance(column, list) and len(column) == len(lists[0]) for column in lists):
        raise StorageError(f"{path}: its contexts do not match; {again}")
    checkpoint = str(result.get("checkpoint"))
    now = CheckpointStore(run / "checkpoints").fingerprint(checkpoint)
    if now is not None and result.get("weights", now) != now:
        raise DataError(f"{path}: checkpoint {checkpoint} has changed since; {again}")
    return Evaluation(str(run), result, contexts)


def guesses(evaluation: Evaluation) -> bool:
    """Whether the model is near guessing, so that its difference to another such model is noise."""
    return bool(evaluation.result.get("near_guessing"))


def guessing_warning(rows: Sequence[Result]) -> list[str]:
    """What a comparison says of its runs that are near guessing; nothing where there is none."""
    names = ", ".join(str(visible(row["run"])) for row in rows if row["near_guessing"])
    if not names:
        return []
    return [f"Warning: near guessing, so that differences between them are noise, without a p: {names}."]


def damaged(record: Mapping[str, Any]) -> bool:
    """Whether a record is not what was written; older ones, which hold no hash, are believed."""
    return not is_sealed(record) and record.keys() != {"format", "result", "contexts"}


def damaged_records(run: Path) -> Iterator[str]:
    """One line for each evaluation of a run that is not what was written."""
    for path in sorted((run / EVALUATIONS).glob("*.json")):
        try:
            record = read_json(path)
        except StorageError as error:
            yield f"{str(error).split(';')[0]}; evaluate again"
            continue
        if not isinstance(record, dict) or damaged(record):
            yield f"{visible(path)}: edited or damaged; evaluate again"


def evaluation_names(run: Path) -> list[str]:
    """What the evaluations of a run are called; StorageError where there is no run."""
    if not run.is_dir():
        raise StorageError(f"{run}: no such run; check the path")
    return sorted(path.name.removesuffix(".json") for path in (run / EVALUATIONS).glob("*.json"))


def common_name(runs: Sequence[Path], program: str, options: str) -> str:
    """The one evaluation that all runs have; DataError for none, ConfigError for several.

    ``options`` are those of ``evaluate`` that its name tells of, for the remedy.
    """
    kept = {run: evaluation_names(run) for run in runs}
    common = set.intersection(*map(set, kept.values()))
    if not common:
        names = "; ".join(f"{run}: {', '.join(kept[run]) or 'none'}" for run in runs)
        raise DataError(
            f"no evaluation in common ({names}); run `{program} evaluate` on each run "
            f"with the same options ({options})"
        )
    if len(common) > 1:
        names = ", ".join(sorted(common))
        raise ConfigError(f"the runs have several evaluations in common; choose one with --name: {names}")
    return common.pop()


def lookup(record: Any, keys: Sequence[str]) -> Any:
    """What nested objects hold under the keys; None where there is no such key."""
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return record


def _data_of(path: Path) -> str | None:
    """The hash of the data of a kept evaluation; None where there is none that can be read."""
    try:
        record: Any = read_json(path)
        return str(record["result"]["data"]["sha256"])
    except (StorageError, KeyError, TypeError):
        return None
