"""Runs at a glance, without torch: their state, their best score and their learning curve."""

import json
import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lm.disk.filelock import held
from lm.disk.jsonfile import read_json
from lm.disk.storage import read_file
from lm.errors import HighrankError, StorageError
from lm.measures import nonmonotonic, perplexity
from lm.runs.checkpoint import CheckpointStore
from lm.runs.commit import Commit, require_sizes
from lm.runs.inputs import CONFIG, LOG, LOG_LIMIT, changed_config, ending, lost_checkpoints, recorded
from lm.runs.run import LOCK

CurvePoint = tuple[int, float]  # (update, validation perplexity)
_UNFINISHED = ("running", "interrupted", "diverged")


def run_row(run: Path) -> dict[str, Any]:
    """Table row of a run: family, state, last committed step, best validation, MB, and time of last change.

    The time is in ISO 8601 and UTC.
    """
    stats = []
    for path in (Path(folder) / name for folder, _, names in os.walk(run) for name in names):
        with suppress(OSError):  # a training may remove it meanwhile
            stats.append(path.lstat())
    row: dict[str, Any] = {
        "run": str(run),
        "family": "",
        "state": "",
        "step": None,
        "best perplexity": None,
        "at step": None,
    }
    try:
        changed, config = _changed(run), dict[str, Any]()
        try:
            row["family"], config = _config(run)
        except StorageError:
            if not changed:
                raise
        progress = _progress(run)
        row["step"] = progress.get("step") if progress else None
        if progress and progress.get("best"):
            nll, step = progress["best"][0]
            row |= {"best perplexity": perplexity(float(nll)), "at step": int(step)}
        damage = changed and f"damaged: {changed}"
        row["state"] = damage or _state(run, config["train"], progress) + _remarks(run)
    except (HighrankError, KeyError, TypeError, ValueError, IndexError) as error:
        row["state"] = f"damaged: {error}" if isinstance(error, HighrankError) else "damaged"
    newest = max((stat.st_mtime for stat in stats), default=time.time())
    row["MB"] = sum(stat.st_size for stat in stats) / 1e6
    return row | {"changed": datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds")}


def unfinished_state(run: Path) -> str:
    """State of a run whose training has not ended as planned: running, interrupted or diverged; else ""."""
    try:
        state = _state(run, _config(run)[1]["train"], _progress(run))
    except (HighrankError, KeyError, TypeError, ValueError):  # evaluations outlive the files of a training
        return ""
    return state if state in _UNFINISHED else ""


def learning_curve(run: Path, split: str = "valid") -> list[CurvePoint]:
    """Update and perplexity of every finite entry of a split in the log of a run; [] without a log."""
    found: dict[int, float] = {}
    for line in _log(run):
        try:
            record = json.loads(line)
            if record["split"] == split and record["nll"] is not None:
                found[int(record["step"])] = perplexity(float(record["nll"]))
        except (KeyError, OverflowError, RecursionError, TypeError, ValueError):
            continue  # a torn or foreign line is not a point of the curve
    return sorted(found.items())


def _log(run: Path) -> list[bytes]:
    """Lines of the log of a run; [] without one."""
    path = run / LOG
    return read_file(path, limit=LOG_LIMIT).splitlines() if path.is_file() else []


def _remarks(run: Path) -> str:
    """Additions to the state of an undamaged run in a table."""
    lost = ", without checkpoints" if lost_checkpoints(run) else ""
    return lost + (", contexts saturated" if _saturated(run) else "")


def _saturated(run: Path) -> bool:
    """True if the contexts of the head were saturated at the last validation of a run."""
    validations = [line for line in _log(run) if b'"valid"' in line or b'"saturated"' in line]
    return bool(validations) and b'"saturated"' in validations[-1]


def _changed(run: Path) -> str:
    """Problem of a config that differs from the record of the newest commit; else ""."""
    record = recorded(run)
    return changed_config(run, record) if record else ""


def _config(run: Path) -> tuple[str, dict[str, Any]]:
    saved = read_json(run / CONFIG)
    if not isinstance(saved, dict) or not isinstance(config := saved.get("config"), dict):
        raise StorageError(f"{CONFIG} is not the config of a run")
    return str(saved.get("family", "dialog")), config


def _progress(run: Path) -> dict[str, Any] | None:
    """Progress and ``seconds`` of the newest checkpoint, whose sizes are checked; None without one.

    {} if the run was imported.
    """
    store = CheckpointStore.of(run)

    def read() -> dict[str, Any] | None:
        newest = store.newest_folder()
        if newest is None:
            return None
        require_sizes(newest)
        state = Commit.read(newest, tensors=False).state
        progress: dict[str, Any] = state.get("progress", {})
        return progress and progress | {"seconds": state.get("seconds", 0.0)}

    return store.undisturbed(read)


def _state(run: Path, train: dict[str, Any], progress: dict[str, Any] | None) -> str:
    """State of a run: running, finished, diverged, interrupted, imported, or not begun."""
    if held(run / LOCK):
        return "running"
    if ended := ending(run):
        return ended
    if not progress:
        return "not begun" if progress is None else "imported"
    limits = (("max_steps", "step"), ("max_epochs", "epoch"), ("patience", "stale"))
    reached = any(train[limit] and progress[count] >= train[limit] for limit, count in limits)
    late = 0 < 60 * train.get("max_minutes", 0) <= progress["seconds"]
    trigger = train.get("stop_trigger", 0)
    worse = bool(trigger) and nonmonotonic(progress.get("history", ()), trigger)
    return "finished" if reached or late or worse else "interrupted"
