"""Evaluations saved in a run: ``RUN/evaluation/<name>.json``.

A record is ``{"format", "result", "contexts", "details", "sha256"}``. ``result`` is the displayed result.
``contexts`` has its summands by column, which comparisons resample. ``details`` are for reports: samples, the
use of components, and the command. ``sha256`` is the hash of the rest.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from lm.config.places import not_a_run, runs_in
from lm.disk.filelock import exclusive
from lm.disk.jsonfile import canonical_json, finite, is_sealed, read_json, sealed
from lm.disk.storage import make_folder, remove_leftovers, require_creatable, require_space, write_atomic
from lm.ending import given_command
from lm.errors import DataError, StorageError, visible
from lm.results import Merged, as_json
from lm.runs.checkpoint import CheckpointStore
from lm.stop import deferred_signals

JsonObject = dict[str, Any]  # an object of a file
T = TypeVar("T")

EVALUATION_FORMAT = 1
EVALUATIONS, _LOCK = "evaluation", ".lock"
_LONGEST = 200  # bytes of a name; a file system allows 255, with endings
HASH_DIGITS = 6  # at the end of the name of an evaluation
_HASH = re.compile(rf"\.[0-9a-f]{{{HASH_DIGITS}}}$")
_ROOM = 1 << 20  # bytes of disk space for a result


@dataclass(frozen=True)
class EvaluatedData:
    """Text of an evaluation: its name, source and hash, and the share of unknown tokens.

    ``own_unknown_share`` is that of the run's own test split, if the text is another one with far more.
    """

    name: str
    source: str
    sha256: str
    unknown_share: float
    own_unknown_share: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Subject:
    """Model, weights and data of an evaluation: fields of the results of both families."""

    run: str
    checkpoint: str
    weights: str | None
    head: str
    parameters: int
    device: str
    seed: int
    data: EvaluatedData
    tokenizer: str
    vocabulary_sha256: str

    @classmethod
    def of(cls, trained: Any, run: Path, checkpoint: str, weights: str | None, data: EvaluatedData) -> Self:
        """Subject of an evaluation of a loaded model of either family."""
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


@dataclass(frozen=True)
class Member:
    """A further run of an evaluation, and the fingerprint of its weights."""

    run: str
    weights: str | None


def members(others: Sequence[Path], weights: Sequence[str | None]) -> list[Member] | None:
    """The further runs of an ensemble; None if there is none."""
    return [Member(str(run), own) for run, own in zip(others, weights, strict=True)] or None


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Result of an evaluation: its subject, and its ``name`` in ``RUN/evaluation``."""

    subject: Merged[Subject]
    name: str = ""


R = TypeVar("R", bound=EvaluationResult)


@dataclass(frozen=True)
class Evaluation:
    """An evaluation saved in a run, as JSON."""

    run: str
    result: JsonObject
    contexts: JsonObject
    details: JsonObject
    name: str

    @property
    def near_guessing(self) -> bool:
        """True if the model is near guessing, so that its difference from another such model is noise."""
        return bool(self.result.get("near_guessing"))


def slug(text: str) -> str:
    """A text as a part of a file name."""
    return re.sub(r"[^\w.-]+", "-", text).strip(".-") or "data"


def setting_slug(text: str) -> str:
    """A setting as a part of a file name, another one for every text. It ends in a hash if characters go."""
    kept = re.sub(r"[^\w.+-]+", "-", text).strip(".-")
    return text if kept == text else hashed_end(text, kept)


def loaded(run: Path, checkpoint: str, load: Callable[[Path, str], T]) -> tuple[T, str | None]:
    """Result of ``load`` for a run, and the fingerprint of its weights.

    It loads again if a training changes the weights named ``checkpoint`` meanwhile.
    """
    store = CheckpointStore.of(run)
    while True:
        weights = store.fingerprint(checkpoint)
        trained = load(run, checkpoint)
        if store.fingerprint(checkpoint) == weights:
            return trained, weights


def require_keepable(run: Path) -> None:
    """Raise StorageError if :func:`keep` could not write later."""
    require_space(run, _ROOM)
    require_measurable(run, EVALUATIONS)


def require_measurable(run: Path, folder: str) -> None:
    """Raise StorageError if the results of a measurement could not be kept in a folder of the run."""
    place = run / folder
    remedy = f"results are kept in RUN/{folder}: copy the run to a place where you may write"
    require_creatable(place if place.is_dir() else run, remedy)


def spread(count: int, most: int) -> list[int]:
    """At most ``most`` indices below ``count``, evenly spaced."""
    return [count * (2 * number + 1) // (2 * min(most, count)) for number in range(min(most, count))]


def keep(run: Path, result: R, contexts: JsonObject, details: JsonObject | None = None) -> R:
    """Write an evaluation into its run, under the name of the result. Return the result with its final name.

    An evaluation of the same name, data and ensemble is replaced. If the existing one is of others, the new
    name gets six digits of their hash, also if another process writes it meanwhile. Raises StorageError if
    writing fails.
    """
    folder, own = run / EVALUATIONS, _inputs_of(as_json(result))
    result = replace(result, name=_file_stem(result.name))
    make_folder(folder)
    with exclusive(folder / _LOCK), deferred_signals():
        remove_leftovers(folder)
        known = kept_inputs(evaluation_file(run, result.name))
        if known and known[0] != own:
            result = replace(result, name=f"{result.name}.{own[:HASH_DIGITS]}")
        record: JsonObject = {"format": EVALUATION_FORMAT, "result": as_json(result), "contexts": contexts}
        record["details"] = finite(details or {}) | {"command": given_command() or "# evaluated from Python"}
        write_atomic(evaluation_file(run, result.name), canonical_json(sealed(record)) + b"\n")
    return result


def _file_stem(name: str) -> str:
    """A name that fits into that of a file. The end of a long one becomes a hash."""
    content = name.encode()
    if len(content) <= _LONGEST:
        return name
    return hashed_end(name, content[: _LONGEST - 9].decode(errors="ignore"))


def hashed_end(text: str, kept: str) -> str:
    """The ``kept`` beginning of a text, and a hash of all of it."""
    return f"{kept}-{hashlib.sha256(os.fsencode(text)).hexdigest()[:8]}"


def load_evaluation(
    run: Path, name: str, needed: Sequence[Sequence[str]], columns: Sequence[Sequence[str]], program: str
) -> Evaluation:
    """Read what :func:`keep` wrote.

    Args:
        needed: paths of keys, from the outermost, that the record must have.
        columns: paths of keys of lists of equal length in its contexts.
        program: ``dialog`` or ``lm``, for remedies.

    Raises:
        DataError: the run has no such evaluation, or its weights have changed since.
        StorageError: the evaluation is damaged.
    """
    path = evaluation_file(run, name)
    known = evaluation_names(run)
    again = f"run `{program} evaluate` again"
    if name not in known:
        others = ", ".join(known) or "none"
        raise DataError(
            f"{run}: has no evaluation {name} (it has: {others}); run `{program} evaluate` on it first"
        )
    record = _intact_record(path, again)
    if record.get("format") != EVALUATION_FORMAT:
        raise StorageError(f"{visible(path)}: not an evaluation of ours; {again}")
    result, contexts = record.get("result"), record.get("contexts")
    if not isinstance(result, dict) or not isinstance(contexts, dict):
        raise StorageError(f"{path}: damaged; {again}")
    for keys in (*needed, *(("contexts", *column) for column in columns)):
        if lookup(record, keys) is None:
            raise StorageError(f"{path}: has no {'.'.join(keys)}; {again}")
    lists = [lookup(contexts, column) for column in columns]
    if not all(isinstance(column, list) and len(column) == len(lists[0]) for column in lists):
        raise StorageError(f"{path}: its contexts do not match; {again}")
    _require_same_weights(path, run, result, again)
    details = record.get("details")
    return Evaluation(str(run), result, contexts, details if isinstance(details, dict) else {}, name)


def _require_same_weights(path: Path, run: Path, result: JsonObject, again: str) -> None:
    """Raise DataError if the weights of a run, or of another that took part, have changed since."""
    checkpoint = str(result.get("checkpoint"))
    now = CheckpointStore.of(run).fingerprint(checkpoint)
    if now is not None and result.get("weights", now) != now:
        raise DataError(f"{path}: checkpoint {checkpoint} has changed since; {again}")
    others = [(other, checkpoint) for other in result.get("ensemble_with") or ()]
    if backward := result.get("mmi_with"):
        others.append((backward, "best"))
    for other, name in others:
        now = CheckpointStore.of(Path(other["run"])).fingerprint(name)
        if None not in (now, other["weights"]) and now != other["weights"]:
            raise DataError(f"{path}: checkpoint {name} of {other['run']} has changed since; {again}")


def damaged_records(run: Path) -> Iterator[str]:
    """One line for each damaged evaluation of a run."""
    for path in sorted((run / EVALUATIONS).glob("*.json")):
        try:
            _intact_record(path, "evaluate again")
        except StorageError as error:
            yield str(error)


def _intact_record(path: Path, remedy: str) -> JsonObject:
    """The record of a file; StorageError with the ``remedy`` if it is unreadable or damaged."""
    try:
        record = read_json(path)
    except StorageError as error:
        raise StorageError(f"{str(error).split(';')[0]}; {remedy}") from error
    if not isinstance(record, dict) or not is_sealed(record):
        raise StorageError(f"{visible(path)}: edited or damaged; {remedy}")
    return record


def evaluation_names(run: Path) -> list[str]:
    """Names of the evaluations of a run; StorageError without a run."""
    if not (run / EVALUATIONS).is_dir() and runs_in(run) != [run]:
        raise not_a_run(run)
    return sorted(path.name.removesuffix(".json") for path in (run / EVALUATIONS).glob("*.json"))


def evaluation_file(run: Path, name: str) -> Path:
    """The file of an evaluation of a run."""
    return run / EVALUATIONS / f"{name}.json"


def evaluation_at(path: Path) -> tuple[Path, str] | None:
    """The run and the name of an evaluation's file, ``RUN/evaluation/NAME.json``; None for another path."""
    if path.suffix != ".json" or path.parent.name != EVALUATIONS or path.is_dir():
        return None
    return path.parent.parent, path.stem


def run_of(path: str | Path) -> Path:
    """The run folder of a path, which is this folder or the file of one of its evaluations."""
    run, _ = evaluation_at(Path(path)) or (Path(path), "")
    return run


def lookup(record: Any, keys: Sequence[str]) -> Any:
    """Value under a path of keys in nested objects; None without such a key."""
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return record


def unhashed(name: str) -> str:
    """The name of an evaluation without the digits of a hash that :func:`keep` may have added."""
    return _HASH.sub("", name)


def kept_inputs(path: Path) -> tuple[str, str] | None:
    """Hash of the inputs of a saved evaluation and the source of its text; None without a readable one."""
    try:
        record: Any = read_json(path)
        result = record["result"]
        return _inputs_of(result), str(result["data"].get("source", ""))
    except (StorageError, KeyError, TypeError, AttributeError):
        return None


def _inputs_of(result: Any) -> str:
    """Hash of the data, and with an ensemble also of the paths of its further runs."""
    data, others = str(result["data"]["sha256"]), result.get("ensemble_with")
    paths = json.dumps([data, *(other["run"] for other in others or ())])
    return hashlib.sha256(paths.encode()).hexdigest() if others else data
