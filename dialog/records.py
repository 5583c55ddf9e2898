"""The evaluations that a run keeps: ``RUN/evaluation/<name>.json``, and what they are called."""

import re
from pathlib import Path
from typing import Any

from dialog.schema import DecodeConfig
from lm.errors import StorageError
from lm.storage import canonical_json, make_folder, read_json, write_atomic

Result = dict[str, Any]

FORMAT = 1
FOLDER = "evaluation"


def evaluation_name(source: str, references: Path | None = None) -> str:
    """What an evaluation is called after its data: ``test``, ``test+test_multi_ref``, ``smalltalk-test``."""
    stem = source if ":" in source else Path(source).stem
    parts = (stem, references.stem) if references else (stem,)
    return "+".join(_plain(part) for part in parts)


def setting_name(name: str, checkpoint: str, decode: DecodeConfig, usual: DecodeConfig) -> str:
    """``name`` with what is not usual about the evaluation: ``test.last.beam-3``.

    Named are the checkpoint, unless it is ``best``, and decoding where it differs from the run's config.
    """
    other = [] if checkpoint == "best" else [checkpoint]
    configured = usual.model_dump()
    other += [f"{key}-{value}" for key, value in decode.model_dump().items() if value != configured[key]]
    return ".".join([name, *map(_plain, other)])


def keep(run: Path, name: str, result: Result, contexts: Result) -> None:
    """Write an evaluation into its run, its name added to the result.

    The evaluation of the same name is replaced if it is of the same data; beside one of other data the new
    one gets six digits of the data's hash. StorageError where it cannot be written.
    """
    folder = run / FOLDER
    make_folder(folder)
    if _data_of(folder / f"{name}.json") not in (None, result["data"]["sha256"]):
        name = f"{name}.{result['data']['sha256'][:6]}"
    result["name"] = name
    record: Result = {"format": FORMAT, "result": result, "contexts": contexts}
    write_atomic(folder / f"{name}.json", canonical_json(record) + b"\n")


def _data_of(path: Path) -> str | None:
    """The hash of the data of a kept evaluation; None where there is none that can be read."""
    try:
        record: Any = read_json(path)
        return str(record["result"]["data"]["sha256"])
    except (StorageError, KeyError, TypeError):
        return None


def _plain(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip(".-") or "data"
