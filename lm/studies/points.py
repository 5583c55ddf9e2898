"""Storage of the points of a sweep, each saved at once and measured only once."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lm.disk.filelock import FileLock
from lm.disk.storage import canonical_json, parse_json, read_file, write_atomic
from lm.errors import StorageError

_LIMIT = 1 << 26  # bytes of the file


class Points:
    """A file with a line per measured point and its settings, shared by any number of processes.

    ``measures`` are the required keys of a result, and their types. StorageError if an existing file cannot
    be read, or a line of it is not a point.
    """

    def __init__(self, path: Path, measures: Mapping[str, type]) -> None:
        self._path, self._measures = path, measures
        self._lock = FileLock(path.with_name(f".{path.name}.lock"))
        self._lines = self._read()  # lines by settings

    def _read(self) -> dict[bytes, bytes]:
        path, found = self._path, {}
        lines = read_file(path, limit=_LIMIT).splitlines() if path.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                point: Any = parse_json(line, path)
            except StorageError:
                point = None
            match point:
                case {"settings": dict(settings), "result": dict(result)} if self._complete(result):
                    found[canonical_json(settings)] = line
                case _:
                    raise StorageError(f"{path}:{number}: not a point of a sweep; remove the line")
        return found

    def _complete(self, result: Mapping[str, Any]) -> bool:
        return all(isinstance(result.get(name), kind) for name, kind in self._measures.items())

    def measured(self, settings: Mapping[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the stored result of the settings, or call ``measure`` and store its result."""
        key = canonical_json(settings)
        if key not in self._lines:
            line = canonical_json({"settings": settings, "result": measure()})
            with self._lock:  # another process may have added points
                self._lines = self._read() | {key: line}
                write_atomic(self._path, b"".join(line + b"\n" for line in self._lines.values()))
        point: Any = parse_json(self._lines[key], self._path)  # exactly as another process reads it
        result: dict[str, Any] = point["result"]
        return result
