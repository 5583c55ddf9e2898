"""Data sets of the ``datasets`` library: files, saved in a folder, or fetched from the hub by name."""

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lm.disk.regular import require_regular
from lm.errors import DataError, brief

HUB = "hf:"  # prefix of data sets of the hub, the only names that cause network access
_STORED = ("state.json", "dataset_dict.json")  # files in a folder of save_to_disk
_BUILDERS = {"jsonl": "json", "json": "json", "ndjson": "json", "csv": "csv", "parquet": "parquet"}
_SECONDS = 5.0  # time limit of the hub's answer


def load_tables(source: str) -> dict[str, Any]:
    """Load the tables by split of a data set in a folder, or of the hub: ``hf:NAME`` or ``hf:NAME:CONFIG``.

    An unsplit data set, such as a file of JSON, CSV or parquet, has the single key ``""``. Raises DataError
    if it cannot be loaded, without retries if the hub is unreachable.
    """
    name = source.removeprefix(HUB)
    path, config = name, ""
    if not Path(name).exists():
        if not source.startswith(HUB):
            raise DataError(
                f"{source}: no such folder; check the path, or write {HUB}NAME for a data set of the hub"
            )
        path, _, config = name.partition(":")
        _require_hub(source)
    require_regular(Path(path))
    builder = _builder(Path(path))
    import datasets

    try:
        if builder:
            with quiet_datasets():
                return {"": datasets.load_dataset(builder, data_files=glob.escape(path), split="train")}
        if any((Path(path) / file).is_file() for file in _STORED):
            loaded: Any = datasets.load_from_disk(path)
        else:
            loaded = datasets.load_dataset(path, config or None)
    except Exception as error:  # network, hub, file formats: the library raises any exception
        cause = error.__cause__ if builder else None  # the library wraps what is wrong with a file
        told = brief(cause if isinstance(cause, Exception) else error)
        remedy = "mend the file" if builder else "check name and configuration"
        raise DataError(f"{source}: cannot load it ({told}); {remedy}") from error
    return {str(key): table for key, table in loaded.items()} if isinstance(loaded, dict) else {"": loaded}


@contextmanager
def quiet_datasets() -> Iterator[None]:
    """Context manager: the ``datasets`` library shows neither progress nor messages."""
    import datasets

    bars, verbosity = datasets.are_progress_bars_disabled(), datasets.utils.logging.get_verbosity()
    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.utils.logging.set_verbosity(verbosity)
        if not bars:
            datasets.enable_progress_bars()


def _builder(path: Path) -> str:
    """The loader of the library for a file, by its name; empty for a folder and for what is not here."""
    if not path.is_file():
        return ""
    kind = next((_BUILDERS[part] for part in path.name.lower().split(".")[:0:-1] if part in _BUILDERS), "")
    if not kind:
        raise DataError(f"{path}: no file of records; data sets are {', '.join(_BUILDERS)}, or a folder")
    return kind


def _require_hub(source: str) -> None:
    """Raise DataError within seconds unless the hub answers, or HF_HUB_OFFLINE selects the cache."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return
    import ssl
    import urllib.error
    import urllib.request

    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(address, timeout=_SECONDS).close()
    except urllib.error.HTTPError:
        return  # it answers
    except (OSError, ValueError) as error:
        if isinstance(getattr(error, "reason", error), ssl.SSLError):
            return  # it answers, and the library has its own certificates
        raise DataError(
            f"{source}: cannot reach {address}; connect to a network, "
            "or set HF_HUB_OFFLINE=1 to use the cached copy"
        ) from error
