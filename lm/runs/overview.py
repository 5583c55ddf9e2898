"""Runs at a glance, without torch: their state, their best score and their learning curve."""

import json
import math
import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lm.disk.filelock import held
from lm.disk.storage import read_file, read_json
from lm.errors import HighrankError, StorageError, visible
from lm.measures import perplexity
from lm.numbers import number
from lm.runs.checkpoint import CheckpointStore
from lm.runs.commit import Commit, require_sizes
from lm.runs.inputs import CONFIG, LOG
from lm.runs.run import LOCK

CurvePoint = tuple[int, float]  # (update, validation perplexity)
_WIDTH, _HEIGHT = 60, 8
_UNFINISHED = ("running", "interrupted", "diverged")
_LOG_LIMIT = 256 << 20  # largest plausible size of metrics.jsonl in bytes


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
        family, config = _config(run)
        row["family"] = family
        progress = _progress(run)
        row["state"] = _state(run, config["train"], progress)
        row["step"] = progress.get("step") if progress else None
        if progress and progress.get("best"):
            nll, step = progress["best"][0]
            row |= {"best perplexity": perplexity(float(nll)), "at step": int(step)}
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
    path = run / LOG
    if not path.is_file():
        return []
    found: dict[int, float] = {}
    for line in read_file(path, limit=_LOG_LIMIT).splitlines():
        try:
            record = json.loads(line)
            if record["split"] == split and record["nll"] is not None:
                found[int(record["step"])] = perplexity(float(record["nll"]))
        except (ValueError, KeyError, TypeError):  # a torn or foreign line is not a point of the curve
            continue
    return sorted(found.items())


def curve_lines(points: list[CurvePoint], *, unicode: bool, columns: int = 79) -> list[str]:
    """Text plot of validation perplexity, on a log axis, against updates, in a number of ``columns``.

    [] for fewer than two points, and for too few columns.
    """
    if len(points) < 2:
        return []
    best_step, best = min(points, key=lambda point: point[1])
    low, high, end = best, max(value for _, value in points), points[-1][0]
    labels = [number("ppl", high), *[""] * (_HEIGHT - 2), number("ppl", low)]
    wide, updates = max(map(len, labels)), f"{end:,} updates"
    width = min(_WIDTH, columns - wide - 2)
    if width < len(updates) + 2:
        return []
    marks = [[" "] * width for _ in range(_HEIGHT)]
    for step, value in points:
        column = round((width - 1) * step / max(1, end))
        height = _share(value, low, high)
        sign = ("●" if unicode else "O") if (step, value) == (best_step, best) else ("•" if unicode else "*")
        marks[round((_HEIGHT - 1) * (1 - height))][column] = sign
    side, corner, floor = ("│", "└", "─") if unicode else ("|", "+", "-")
    lines = [
        f"{label:>{wide}} {side}{''.join(row).rstrip()}" for label, row in zip(labels, marks, strict=True)
    ]
    return [
        f"validation perplexity, best {number('ppl', best)} at update {best_step:,}",
        *lines,
        f"{'':{wide}} {corner}{floor * width}",
        f"{'':{wide}}  0{updates:>{width - 1}}",
    ]


def _share(value: float, low: float, high: float) -> float:
    """Height of a value between two others on a log axis, from 0 to 1; 1 for non-finite values."""
    if not math.isfinite(value):
        return 1.0
    top = high if math.isfinite(high) else 1e300
    return math.log(value / low) / math.log(top / low) if top > low else 0.0


def _config(run: Path) -> tuple[str, dict[str, Any]]:
    saved = read_json(run / CONFIG)
    if not isinstance(saved, dict) or not isinstance(config := saved.get("config"), dict):
        raise StorageError(f"{CONFIG} is not the config of a run")
    return str(saved.get("family", "dialog")), config


def _progress(run: Path) -> dict[str, Any] | None:
    """Progress in the newest checkpoint, whose file sizes are checked; None without one, {} if imported."""
    store = CheckpointStore.of(run)

    def read() -> dict[str, Any] | None:
        newest = store.newest_folder()
        if newest is None:
            return None
        require_sizes(newest)
        progress: dict[str, Any] = Commit.read(newest, tensors=False).state.get("progress", {})
        return progress

    return store.undisturbed(read)


def _state(run: Path, train: dict[str, Any], progress: dict[str, Any] | None) -> str:
    """State of a run: running, finished, diverged, interrupted, imported, or not begun."""
    if held(run / LOCK):
        return "running"
    if ended := _ending(run):
        return ended
    if not progress:
        return "not begun" if progress is None else "imported"
    limits = (("max_steps", "step"), ("max_epochs", "epoch"), ("patience", "stale"))
    reached = any(train[limit] and progress[count] >= train[limit] for limit, count in limits)
    return "finished" if reached else "interrupted"


def _ending(run: Path) -> str:
    """End of the last sitting, from the last line of timing.jsonl; "" if the sitting was killed."""
    path = run / "timing.jsonl"
    lines = read_file(path, limit=_LOG_LIMIT).splitlines() if path.is_file() else []
    try:
        return visible(json.loads(lines[-1]).get("ended", "")) if lines else ""
    except (ValueError, AttributeError):
        return ""


def ago(moment: str) -> str:
    """Time since a moment in ISO 8601, in the largest unit with a count of at least one."""
    seconds = time.time() - datetime.fromisoformat(moment).timestamp()
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if count := int(seconds // size):
            return f"{count:,} {unit}{'s' if count > 1 else ''} ago"
    return "seconds ago"
