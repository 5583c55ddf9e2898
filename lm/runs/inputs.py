"""Hashes of a run's inputs and small files, and the config keys that may change on resume.

Every commit records, in its facts under ``run``::

    files     SHA-256 of config.json, data.json, vocabulary.json, trunk.json and the files of the tokenizer
    config    every value of the config, by dotted key
    free      config keys besides RESUMABLE that may change when the run is resumed
    log       size and SHA-256 of metrics.jsonl

The record of the newest commit is valid. ``config.json`` may change on resume, so it also holds its own
SHA-256. An imported run has no record.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from lm.config.difference import changes_text, flat
from lm.config.load import C, Resolved, read_config, require_family
from lm.config.settings import Setting, Settings
from lm.disk.jsonfile import JSON, canonical_json, is_sealed, read_json, write_json
from lm.disk.storage import read_file, sha256_file, write_atomic
from lm.errors import StorageError, visible
from lm.launched import leads
from lm.runs.checkpoint import CheckpointStore, Commit
from lm.runs.commit import FileRecord, Sha256
from lm.text.prepared_folder import recorded_hashes
from lm.text.vocabulary import RESTORE, Codec

CONFIG, DATA, LOG, TIMING_LOG = "config.json", "data.json", "metrics.jsonl", "timing.jsonl"
TRUNK: Final = "trunk.json"  # of a pretrained trunk: the config.json of its folder
CODEC_HASH = "codec_sha256"
PREPARED_HASH = "prepared_sha256"  # of the files of a prepared training split; not compared on resume
RunFile = Literal[
    "config.json", "data.json", "vocabulary.json", "tokenizer.json", "tokenizer.model", "trunk.json"
]  # fmt: skip
FILES: tuple[RunFile, ...] = get_args(RunFile)
CONFIG_LIMIT, DATA_LIMIT, LOG_LIMIT = 16 << 20, 1 << 20, 256 << 20  # bytes
_COPY = "restore it from a copy, or train into another folder with --run"
_MEND = "restore it, or run the same training again, which mends it"
OWN = "the run"  # provenance of a value whose own provenance is lost
RECORD = "run"  # among the facts of a commit

WITHOUT_EFFECT = frozenset(
    f"train.{key}" for key in ("checkpoint_every", "checkpoint_minutes", "exchange_minutes", "keep_last")
) | {"about", "extends", "data.test"}
"""Keys that change no number of a training, unless it diverges: it then returns to its last checkpoint."""

RESUMABLE = WITHOUT_EFFECT | {
    f"train.{key}"
    for key in ("max_steps", "max_epochs", "max_minutes", "patience", "stop_trigger", "keep_best", "device")
}
"""Keys that may change when a run of any family is resumed."""


def file_hashes(run: Path) -> dict[str, JSON]:
    """SHA-256 of the small files of a run, by name; raises StorageError."""
    return {name: sha256_file(run / name) for name in FILES if os.path.lexists(run / name)}


class Record(BaseModel):
    """Record of a run in a commit."""

    model_config = ConfigDict(frozen=True, strict=True)
    files: dict[RunFile, Sha256]
    config: dict[str, Any]
    free: list[str]
    log: FileRecord


def record_of(commit: Commit | None) -> Record | None:
    """Record of a run in a commit; None without a commit or record. Raises StorageError."""
    if commit is None or RECORD not in commit.facts:
        return None
    try:
        return Record.model_validate(commit.facts[RECORD])
    except ValidationError as error:
        raise StorageError(f"{commit.path}: foreign, its record of the run is not ours") from error


def recorded(run: Path) -> Record | None:
    """Record in the newest commit of a run, if any. Raises StorageError."""
    return record_of(CheckpointStore.of(run).newest())


def lost_checkpoints(run: Path) -> str:
    """Problem of a run whose logs record a training of which there is no checkpoint; else ``""``.

    A training makes the folder before the first line of its log, and has a checkpoint when it finishes.
    """
    store, log = CheckpointStore.of(run), run / LOG
    if store.begun:  # first, because that reads no log
        return ""
    logged = os.path.isfile(log) and os.path.getsize(log) > 0
    if (not logged or os.path.lexists(store.folder)) and ending(run) != "finished":
        return ""
    return f"{visible(store.folder)}: no checkpoint of the training that was logged; restore it from a copy"


def require_checkpoints(run: Path) -> None:
    """Raise StorageError for a run that has lost its checkpoints."""
    if lost := lost_checkpoints(run):
        raise StorageError(f"{lost}, or train into another folder with --run")


def ending(run: Path) -> str:
    """End of the last sitting, from the last line of timing.jsonl; "" if the sitting was killed."""
    return visible(_last_timing(run).get("ended", ""))


def finished_at(run: Path) -> int:
    """The step at which a training finished; -1 if it did not, or if its timing.jsonl is gone."""
    last = _last_timing(run)
    step = last.get("step")
    return step if last.get("ended") == "finished" and type(step) is int else -1


def _last_timing(run: Path) -> dict[str, Any]:
    path = run / TIMING_LOG
    lines = read_file(path, limit=LOG_LIMIT).splitlines() if path.is_file() else []
    try:
        last = json.loads(lines[-1]) if lines else {}
    except (ValueError, RecursionError):
        return {}
    return last if isinstance(last, dict) else {}


def changed_files(run: Path, record: Record) -> Iterator[str]:
    """One line for each small file, except the config, that differs from a record."""
    for name, sha256 in record.files.items():
        path = run / name
        if name == CONFIG:
            continue
        if problem := _difference(path, sha256):
            yield f"{problem}; {_COPY if name == DATA else RESTORE}"


def _difference(path: Path, sha256: str) -> str:
    """Problem of a small file, or ``""``."""
    if not os.path.lexists(path):
        return f"{visible(path)}: missing"
    try:
        found = sha256_file(path)
    except StorageError as error:
        return str(error).split(";")[0]
    return "" if found == sha256 else f"{visible(path)}: edited or damaged since the training"


def changed_config(run: Path, record: Record) -> str:
    """Problem of a config that differs from a record, except by allowed changes on resume; else ``""``."""
    path = run / CONFIG
    was, free = record.config, RESUMABLE.union(record.free)
    if not os.path.lexists(path):
        return f"{visible(path)}: missing; {_MEND}"
    try:
        saved = read_json(path, limit=CONFIG_LIMIT)
        now = flat(saved["config"]) if isinstance(saved, dict) else {}
    except (StorageError, KeyError, AttributeError) as error:
        if isinstance(error.__cause__, OSError):
            return str(error)  # unreadable, not damaged
        reason = str(error) if isinstance(error, StorageError) else f"{visible(path)}: damaged"
        return f"{reason.split(';')[0]}; {_MEND}"
    whole = is_sealed(saved)
    changed = [key for key in now if key in was and now[key] != was[key] and not (whole and key in free)]
    if whole and not changed:
        return ""
    listed = changes_text(changed, was, now, 3)
    return f"{visible(path)}: edited or damaged since the training{listed and ': '}{listed}; {_MEND}"


def saved_settings(run: Path) -> Settings:
    """Config of a run by dotted key; from the newest commit if the file is damaged.

    It is empty for a folder without a training. Raises StorageError for a damaged config without a record.
    """
    record = recorded(run)
    if record and changed_config(run, record):
        return {key: Setting(value, OWN) for key, value in record.config.items()}
    match read_json(run / CONFIG, limit=CONFIG_LIMIT) if os.path.lexists(run / CONFIG) else None:
        case {"config": dict(values), "provenance": dict(places)}:
            return {key: Setting(value, visible(places.get(key, OWN))) for key, value in flat(values).items()}
    return {}


def require_program(run: Path, program: str) -> None:
    """Raise StorageError for a run of another program. One with a damaged config or without one passes."""
    saved: object = None
    with suppress(StorageError):
        saved = read_json(run / CONFIG, limit=CONFIG_LIMIT)
    require_family(run / CONFIG, saved, program)


def config_of(run: Path, schema: type[C]) -> Resolved[C]:
    """Config of a run; StorageError without one, or if files of the run have changed."""
    if (record := recorded(run)) and (problem := changed_config(run, record)):
        raise StorageError(problem)
    require_same_files(run)
    return read_config(run / CONFIG, schema)


def opened_run(run: Path, schema: type[C]) -> tuple[C, Codec]:
    """Config and codec of a run; raises StorageError like :func:`config_of`, and for lost checkpoints."""
    require_checkpoints(run)
    return config_of(run, schema).config, codec_of(run)


def require_same_files(run: Path) -> None:
    """Raise StorageError if a small file of a run, except the config, changed since its training."""
    if record := recorded(run):
        for problem in changed_files(run, record):
            raise StorageError(problem)


def codec_of(run: Path) -> Codec:
    """Codec of a run; StorageError without one, or if its hash differs from that in data.json."""
    codec = Codec.load(run)
    if os.path.lexists(run / DATA):
        saved = read_json(run / DATA, limit=DATA_LIMIT)
        if not isinstance(saved, dict) or saved.get(CODEC_HASH) != codec.fingerprint:
            raise StorageError(f"{run}: vocabulary.json or tokenizer.json is not the run's own; {RESTORE}")
    return codec


def changed_inputs(run: Path, hashes: Mapping[str, str]) -> list[str]:
    """Names of the inputs of a run that differ from its record; [] for a new run. Raises StorageError."""
    path = run / DATA
    saved = read_json(path, limit=DATA_LIMIT) if os.path.lexists(path) else hashes
    return [name for name, value in hashes.items() if not isinstance(saved, dict) or saved.get(name) != value]


def save_inputs(
    run: Path, codec: Codec, hashes: Mapping[str, str], files: Mapping[RunFile, bytes], train: str
) -> list[str]:
    """Save codec, files and input hashes of a new run. Return :func:`changed_inputs` of an older one.

    ``train`` is the source of the training split. Raises StorageError.
    """
    path = run / DATA
    if os.path.lexists(path):
        return changed_inputs(run, hashes)
    codec.save(run)
    for name, content in files.items():
        write_atomic(run / name, content)
    write_json(path, dict[str, JSON](hashes) | _prepared(train))
    return []


def _prepared(train: str) -> dict[str, JSON]:
    """Hash of the files of a training split; {} unless it was prepared."""
    files = recorded_hashes(Path(train))
    return {PREPARED_HASH: hashlib.sha256(canonical_json(files)).hexdigest()} if files else {}


def prepared_anew(runs: Sequence[Path], sources: Sequence[str]) -> list[str]:
    """Warnings about training splits that were prepared again since runs read them, on rank 0.

    Other splits of the corpus may then hold what the runs were trained on. ``sources`` are the splits.
    """
    if not leads():
        return []
    return [
        f"warning: {visible(train)} was prepared again since {visible(run)} was trained, so that the test"
        " split may hold what it has read; evaluate a text that is new to it with --data"
        for run, train in zip(runs, sources, strict=True)
        if _is_prepared_anew(run, train)
    ]


def _is_prepared_anew(run: Path, train: str) -> bool:
    saved = read_json(run / DATA, limit=DATA_LIMIT) if os.path.lexists(run / DATA) else None
    before = saved.get(PREPARED_HASH) if isinstance(saved, dict) else None
    return before is not None and _prepared(train).get(PREPARED_HASH, before) != before
