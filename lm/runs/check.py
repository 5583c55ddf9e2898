"""Integrity check of a run, for ``check``: every file against its recorded hash."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lm.disk.storage import sha256_file
from lm.errors import StorageError, visible
from lm.runs.checkpoint import AVERAGE, CheckpointStore, CommitReport
from lm.runs.commit import FileRecord
from lm.runs.evaluations import damaged_records
from lm.runs.inputs import (
    CONFIG,
    LOG,
    Record,
    changed_config,
    changed_files,
    codec_of,
    finished_at,
    lost_checkpoints,
    record_of,
    recorded,
)
from lm.runs.metrics_log import LOG_LOST
from lm.runs.run import CORPUS
from lm.text.prepared_folder import damaged_outputs

_IMPORTED, _UNREADABLE = "imported", "no checkpoint can be read"
_ANEW = "training goes on without it, and the log begins anew"
_UNKNOWN = "so nothing is known to compare its files and its log with"


@dataclass(frozen=True)
class RunCheck:
    """Result of a check of a run.

    ``step`` and ``state_sha256`` are those of the last commit, None if it is damaged. Equal hashes mean
    bit-identical weights, optimiser, position, random generators and validations; the length of the log
    counts, too. ``commits`` begin with the newest. ``problems`` are one line each, and ``notes`` are
    harmless.
    """

    step: int | None
    state_sha256: str | None
    commits: Sequence[CommitReport]
    problems: Sequence[str]
    notes: Sequence[str]


def check_run(run: Path) -> RunCheck:
    """Compare every file of a run with its record: checkpoints, config, codec, log, results, corpus.

    Raises StorageError for a run without any commit.
    """
    store = CheckpointStore.of(run)
    reports = store.verify_all()
    if not reports:
        raise StorageError(lost_checkpoints(run) or f"{run}: no checkpoint; is it the folder of a run?")
    problems = [problem for report in reports if (problem := _damage(report, reports[0]))]
    last, newest, notes = reports[0], store.newest(), list[str]()
    if newest and newest.step == last.step:
        problems += _lost(store, last.step, finished_at(run))
    if newest and (record := record_of(newest)):
        changes = _changes(run, record)
        problems += changes
        config = record.files.get("config.json")
        if not changes and config and sha256_file(run / CONFIG) != config:
            notes.append(f"{visible(run / CONFIG)}: changed since step {newest.step}, by resuming the run")
        if not changes and (more := _more_log(run / LOG, record.log)):
            notes.append(
                f"{visible(run / LOG)}: {more:,} bytes since step {newest.step}, which resuming drops"
            )
    else:
        problems += _damages(run)
        notes.append(f"{visible(run)}: {_IMPORTED if newest else _UNREADABLE}, {_UNKNOWN}")
    problems += damaged_records(run)
    if os.path.lexists(run / CORPUS):
        problems += damaged_outputs(run / CORPUS)
    return RunCheck(
        step=None if last.problem else last.step,
        state_sha256=last.state_sha256,
        commits=reports,
        problems=problems,
        notes=notes,
    )


def _damage(report: CommitReport, last: CommitReport) -> str:
    """Problem of a damaged commit, with its remedy; "" for an intact one."""
    if not report.problem or "; " in report.problem:
        return report.problem or ""
    again = ", or train again" if report is last else ""
    return f"{report.problem}; restore it from a copy{again}"


def _lost(store: CheckpointStore, newest: int, finished: int) -> list[str]:
    """Problems with checkpoints that are not there: the last one of a finished training, and best ones."""
    found = []
    if finished > newest:
        what = f"no checkpoint of step {finished}, at which the training finished"
        found.append(f"{visible(store.folder)}: {what}; restore it from a copy, or train again")
    try:
        store.steps(AVERAGE)
    except StorageError as error:
        found.append(str(error))
    return found


def _changes(run: Path, record: Record) -> list[str]:
    """Differences from the record of the newest commit, one line each."""
    config, log = changed_config(run, record), _changed_log(run / LOG, record.log)
    return [problem for problem in (config, *changed_files(run, record), log) if problem]


def changed_log(run: Path) -> str:
    """Problem of the log of a run, which differs from the record of the newest commit; else ``""``."""
    record = recorded(run)
    return _changed_log(run / LOG, record.log) if record else ""


def _changed_log(path: Path, log: FileRecord) -> str:
    name = visible(path)
    if not os.path.lexists(path):
        return f"{name}: missing; {_ANEW}"
    try:
        if log.size and not path.lstat().st_size:
            return f"{name}: empty; {_ANEW}"
        if sha256_file(path, follow=False, size=log.size) == log.sha256:
            return ""
    except StorageError as error:
        return str(error)
    return f"{name}: edited or damaged, its first {log.size:,} bytes are not what was logged; {LOG_LOST}"


def _more_log(path: Path, log: FileRecord) -> int:
    """Number of bytes after those of the newest commit: of later updates, or of another program."""
    return max(0, os.path.getsize(path) - log.size)


def _damages(run: Path) -> list[str]:
    """Problems with the files of a run whose commits do not record them."""
    if not os.path.lexists(run / CONFIG):
        return [f"{visible(run / CONFIG)}: missing; restore it from a copy"]
    try:
        codec_of(run)
    except StorageError as error:
        return [str(error)]
    return []
