"""Data sets that the ``datasets`` library opens: stored in a folder, or fetched from the hub by name."""

import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from lm.disk.regular import require_regular
from lm.errors import DataError, visible

HUB = "hf:"  # how the name of a data set of the hub begins; no other name leads to a network
_STORED = ("state.json", "dataset_dict.json")  # of a folder that save_to_disk wrote
_SECONDS = 5.0  # for the hub to answer


def load_tables(source: str) -> dict[str, Any]:
    """Tables by split of a data set in a folder, or of the hub: ``hf:NAME`` or ``hf:NAME:CONFIG``.

    The split is ``""`` where there are none. DataError where it cannot be loaded: before any retries where
    the hub cannot be reached.
    """
    shown, name = visible(source), source.removeprefix(HUB)
    path, config = name, ""
    if not Path(name).exists():
        if not source.startswith(HUB):
            raise DataError(
                f"{shown}: no such folder; check the path, or call a data set of the hub {HUB}NAME"
            )
        path, _, config = name.partition(":")
        _require_hub(shown)
    require_regular(Path(path))
    import datasets

    try:
        if any((Path(path) / file).is_file() for file in _STORED):
            loaded: Any = datasets.load_from_disk(path)
        else:
            loaded = datasets.load_dataset(path, config or None)
    except Exception as error:  # network, hub, file formats: the library raises what it likes
        detail = visible(" ".join(str(error).split())[:200])
        raise DataError(f"{shown}: cannot be loaded ({detail}); check name and configuration") from error
    return {str(key): table for key, table in loaded.items()} if isinstance(loaded, dict) else {"": loaded}


def _require_hub(shown: str) -> None:
    """Raise DataError within seconds unless the hub answers, or the user wants a copy from the cache."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(address, timeout=_SECONDS).close()
    except urllib.error.HTTPError:
        return  # it answers
    except (OSError, ValueError) as error:
        if isinstance(getattr(error, "reason", error), ssl.SSLError):
            return  # it answers; the library has certificates of its own
        raise DataError(
            f"{shown}: {visible(address)} cannot be reached; connect to a network, "
            "or set HF_HUB_OFFLINE=1 to take a copy that was fetched before"
        ) from error
