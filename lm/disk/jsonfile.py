"""JSON files: written whole, read strictly, and sealed by a hash of their content."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from lm.disk.storage import read_file, write_atomic
from lm.errors import StorageError

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"

SEAL = "sha256"
MAX_JSON = 200_000_000  # bytes; a larger JSON file is damaged or foreign


def canonical_json(value: JSON) -> bytes:
    """Canonical JSON: sorted keys, no spaces, ASCII, exact floats. Raises ValueError for NaN and ±inf."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def parse_json(data: bytes, path: Path) -> JSON:
    """Parse the bytes of ``path``. Raises StorageError if they are not JSON, also for NaN and ±inf."""
    try:
        value: JSON = json.loads(data.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path}: not valid JSON; the file is damaged or foreign") from error
    return value


def sealed(value: Mapping[str, JSON]) -> dict[str, JSON]:
    """Add the SHA-256 of an object's content to it, as ``sha256``."""
    rest = {name: part for name, part in value.items() if name != SEAL}
    return rest | {SEAL: hashlib.sha256(canonical_json(rest)).hexdigest()}


def is_sealed(value: JSON) -> bool:
    """True if an object has the ``sha256`` of :func:`sealed` and is unchanged."""
    try:
        return isinstance(value, Mapping) and value.get(SEAL) == sealed(value)[SEAL]
    except (ValueError, RecursionError):
        return False


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def read_json(path: Path, *, limit: int = MAX_JSON, follow: bool = True) -> JSON:
    """Read a JSON file of at most ``limit`` bytes. Raises StorageError."""
    return parse_json(read_file(path, limit=limit, follow=follow), path)


def finite(value: Any) -> Any:
    """Replace every NaN and ±inf in a value, which JSON lacks, with None."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: JSON) -> None:
    """Write a readable JSON file atomically. Raises ValueError for NaN and ±inf, which JSON lacks."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    data = f"{text}\n".encode(errors="backslashreplace")  # a lone surrogate becomes its JSON escape
    write_atomic(path, data)
