"""Evaluations written as JSON, with fields that no version of the program has."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lm.disk.storage import canonical_json, sealed
from lm.runs.evaluations import EVALUATION_FORMAT, EVALUATIONS


def keep_record(
    run: Path,
    name: str,
    result: dict[str, Any],
    contexts: dict[str, Any],
    details: dict[str, Any] | None = None,
) -> None:
    """Write a record to ``RUN/evaluation/NAME.json``."""
    folder = run / EVALUATIONS
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"result": result | {"name": name}, "contexts": contexts, "details": details or {}}
    (folder / f"{name}.json").write_bytes(canonical_json(sealed({"format": EVALUATION_FORMAT} | parts)))


def edit_record(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the record of a file, and its hash."""
    record = json.loads(path.read_text())
    edit(record)
    path.write_bytes(canonical_json(sealed(record)))
