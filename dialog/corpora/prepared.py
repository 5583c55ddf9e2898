"""Storage of a split as an Arrow folder in the layout of ``datasets``.

Columns: ``id`` (string), ``topic`` (string), ``utterances`` (list of ``{speaker, text, act}``, all strings).
``datasets.load_from_disk`` opens the folder, too. :func:`read_split` avoids that slow import.
"""

import errno
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dialog.utterance import Dialog, Utterance
from lm.disk.regular import open_file
from lm.errors import DataError
from lm.text.hub import quiet_datasets
from lm.text.prepared_folder import recorded_hashes, require_recorded

_INFO = "dataset_info.json"
_JSON_LIMIT = 16 << 20  # bytes
_FIELDS = ("speaker", "text", "act")


def write_split(folder: Path, dialogs: Sequence[Dialog]) -> None:
    """Save dialogs in a new folder. The same dialogs give the same bytes. Raises OSError if writing fails."""
    import datasets

    string = datasets.Value("string")
    features = datasets.Features(
        {"id": string, "topic": string, "utterances": datasets.List(dict.fromkeys(_FIELDS, string))}
    )
    rows = [
        {
            "id": dialog.id,
            "topic": dialog.topic,
            "utterances": [{"speaker": u.speaker, "text": u.text, "act": u.act} for u in dialog.utterances],
        }
        for dialog in dialogs
    ]
    with quiet_datasets():
        datasets.Dataset.from_list(rows, features=features).save_to_disk(folder)


def is_prepared(folder: Path) -> bool:
    """True for a split of ours, even if damaged. False for any other data set saved by ``datasets``."""
    path = folder / _INFO
    try:
        features = json.loads(_read(path, {}))["features"]
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise DataError(f"{path}: {error.strerror}; replace it with a file") from error
        return False
    except (ValueError, KeyError, TypeError, RecursionError):
        return True  # damaged: reading reports the damage
    return isinstance(features, dict) and features.keys() >= {"id", "topic", "utterances"}


def read_split(folder: Path) -> list[Dialog]:
    """Read the dialogs of a folder that :func:`write_split` wrote.

    Every file is compared with its SHA-256 in the manifest beside the folder, if there is one. Raises
    DataError if the folder is damaged or of another layout.
    """
    hashes = recorded_hashes(folder)
    try:
        if hashes:
            _read(folder / _INFO, hashes)
        state = json.loads(_read(folder / "state.json", hashes))
        names = [str(item["filename"]) for item in state["_data_files"]]
        return [dialog for name in names for dialog in _read_arrow(folder / Path(name).name, hashes)]
    except OSError as error:
        reason = error.strerror or "damaged"
    except (ValueError, KeyError, TypeError, RecursionError):  # pyarrow's errors are ValueErrors
        reason = "damaged, or not in the format of `dialog prepare`"
    raise DataError(f"{folder}: {reason}; run `dialog prepare` again")


def _read(path: Path, hashes: Mapping[str, str]) -> bytes:
    with open_file(path) as file:
        data = file.read(_JSON_LIMIT + 1)
        if len(data) > _JSON_LIMIT:
            raise ValueError("longer than any JSON file of `datasets`")
        file.seek(0)
        require_recorded(file, path, hashes)
    return data


def _read_arrow(path: Path, hashes: Mapping[str, str]) -> list[Dialog]:
    import pyarrow as pa

    with open_file(path) as file:
        require_recorded(file, path, hashes)
        table = pa.ipc.open_stream(file).read_all()
    table.validate(full=True)
    ids, topics = table["id"].to_pylist(), table["topic"].to_pylist()
    turns = table["utterances"].combine_chunks()
    fields: list[list[Any]] = [turns.flatten().field(name).to_pylist() for name in _FIELDS]
    if not all(isinstance(value, str) for column in (ids, topics, *fields) for value in column):
        raise ValueError("a column holds values other than strings")
    utterances = [Utterance(*values) for values in zip(*fields, strict=True)]
    ends = [0]
    for length in turns.value_lengths().to_pylist():
        ends.append(ends[-1] + length)
    spans = zip(ids, topics, ends, ends[1:], strict=False)
    return [Dialog(id, topic, tuple(utterances[start:end])) for id, topic, start, end in spans]
