"""Output folder of a ``prepare`` command, which appears by rename and is verified by its manifest.

::

    OUT/report.json     counts
    OUT/dropped.jsonl   one object per dropped piece: file, line, reason, excerpt
    OUT/manifest.json   options, and size and SHA-256 of all input and output files

The folder also contains the splits.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeGuard, cast

from lm.disk.jsonfile import MAX_JSON, parse_json, read_json
from lm.disk.new_folder import NewFolder, strangers
from lm.disk.regular import open_file, open_regular
from lm.disk.storage import read_file, sha256_file, storage_errors
from lm.errors import DataError, StorageError, require, visible
from lm.text.lines import Dropped

MANIFEST = "manifest.json"
REPORT_FILE, _DROPPED = "report.json", "dropped.jsonl"
_KEYS = {"format", "source", "options", "inputs", "outputs"}
DEFAULT_COMMAND = "dialog prepare"  # of manifests that name none


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared folder and its report. ``unchanged``: it existed already, of the same input and options."""

    folder: Path
    report: Mapping[str, Any]
    unchanged: bool


def require_fractions(valid: float, test: float) -> None:
    """Raise ConfigError unless the shares of validation and test leave something to train on."""
    for name, value in (("valid", valid), ("test", test)):
        require(0 <= value < 1, f"--{name}-fraction {value}: must be at least 0 and less than 1")
    require(valid + test < 1, "--valid-fraction and --test-fraction leave no training data; lower them")


def hash_inputs(paths: Iterable[Path]) -> dict[str, Any]:
    """Size and SHA-256 of a source's files. Raises DataError if one cannot be read."""
    found = {}
    for path in paths:
        with open_regular(path) as stream:
            digest = hashlib.file_digest(stream, "sha256")
            found[str(path)] = {"size": stream.tell(), "sha256": digest.hexdigest()}
    return found


def _is_manifest(value: Any) -> TypeGuard[dict[str, Any]]:
    """True for the content of a manifest, judged by its types."""
    if not isinstance(value, dict) or not set(value) >= _KEYS:
        return False
    return isinstance(value["source"], str) and all(
        isinstance(value[key], dict) for key in ("options", "inputs", "outputs")
    )


def recorded_hashes(split: Path) -> dict[str, str]:
    """SHA-256 of a split's files by name, from the manifest beside the split, {} without a manifest.

    Raises DataError if the manifest is damaged.
    """
    start = f"{split.absolute().name}/"
    outputs = _outputs(split.absolute().parent)
    return {name.removeprefix(start): sha256 for name, sha256 in outputs.items() if name.startswith(start)}


def require_unchanged(folder: Path, *names: str) -> None:
    """Raise DataError if a file of a prepared folder, beside its splits, differs from the manifest.

    Files that the manifest does not name, or without a manifest, are not checked. OSError for a missing one.
    """
    hashes = _outputs(folder)
    for name in names:
        if name in hashes:
            with open_file(folder / name) as file:
                require_recorded(file, folder / name, hashes)


def _outputs(folder: Path) -> dict[str, str]:
    """SHA-256 of the files of a prepared folder, from its manifest. As :func:`recorded_hashes` otherwise."""
    path = folder / MANIFEST
    if not os.path.lexists(path):
        return {}
    try:
        value = read_json(path)
        known = _KEYS & set(value) if isinstance(value, dict) else set()
        if not isinstance(value, dict) or not known:
            return {}  # not the manifest of a prepared folder
        if not _is_manifest(value):
            raise StorageError(f"{path}: damaged")
        return {str(name): str(sha256) for name, sha256 in value["outputs"].items()}
    except (StorageError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged; prepare the corpus again, with another --out") from error


def damaged_outputs(folder: Path) -> list[str]:
    """One line for each file of a prepared folder that differs from its manifest."""
    path, mend = folder / MANIFEST, "restore it from a copy"
    try:
        value = read_json(path)
        if not _is_manifest(value):
            raise ValueError("not the manifest of a prepared folder")
        outputs = {Path(name): str(sha256) for name, sha256 in dict(value["outputs"]).items()}
        if any(name.is_absolute() or ".." in name.parts for name in outputs):
            raise ValueError("it names files of other folders")
    except (StorageError, TypeError, ValueError):
        return [f"{visible(path)}: missing or damaged; {mend}"]
    problems = []
    for name, sha256 in outputs.items():
        try:
            whole = sha256_file(folder / name) == sha256
        except StorageError as error:
            problems.append(f"{str(error).split(';')[0]}; {mend}")
            continue
        if not whole:
            problems.append(f"{visible(folder / name)}: edited or damaged after preparation; {mend}")
    return problems


def require_recorded(stream: BufferedReader, path: Path, hashes: Mapping[str, str]) -> None:
    """Raise DataError if the SHA-256 of an open file differs from a recorded one."""
    if hashes and hashlib.file_digest(stream, "sha256").hexdigest() != hashes.get(path.name):
        raise DataError(
            f"{path}: damaged or edited, SHA-256 differs from the manifest; prepare the corpus again"
        )
    stream.seek(0)


class OutputFolder:
    """Output folder of ``command``, with its lock, its temporary folders and an earlier result.

    Foreign content is never replaced: a foreign folder, the result of another source, or files added to ours.
    It raises StorageError.
    """

    def __init__(self, path: Path, command: str) -> None:
        self.path = path
        self.command = command
        self._held = False  # the lock, by `exclusive`
        self._place = NewFolder(path, command)
        self._manifest = self._read_manifest()

    def _read_manifest(self) -> dict[str, Any] | None:
        foreign = StorageError(
            f"{visible(self.path)}: exists and was not written by `{self.command}`; choose another --out"
        )
        with storage_errors(self.path):
            if not os.path.lexists(self.path) or (self.path.is_dir() and not any(self.path.iterdir())):
                return None
            if not (self.path / MANIFEST).is_file():
                raise foreign
        path = self.path / MANIFEST
        content = read_file(path, limit=MAX_JSON)
        try:
            value = parse_json(content, path)
        except StorageError as error:
            raise StorageError(f"{visible(path)}: damaged; choose another --out") from error
        if not _is_manifest(value):
            raise foreign
        if value.get("command", DEFAULT_COMMAND) != self.command:
            raise foreign
        return dict(value)

    def current(self, wanted: Mapping[str, Any]) -> Prepared | None:
        """The existing result if it is complete and made from the ``wanted`` input and options, else None.

        Outside :meth:`exclusive`, also None while another process writes, or after one was killed.
        """
        if self._manifest is None or (self._place.disturbed and not self._held):
            return None
        made_from = {key: value for key, value in self._manifest.items() if key != "outputs"}
        if made_from != wanted or self._manifest["outputs"] != self._files(self.path):  # reads all files
            return None
        report = cast(Mapping[str, Any], read_json(self.path / REPORT_FILE))  # its SHA-256 is verified
        return Prepared(self.path, report, unchanged=True)

    def require_replaceable(self, wanted: Mapping[str, Any]) -> None:
        """Raise StorageError if the folder holds the result of another source, or foreign files."""
        if self._manifest is None:
            return
        source, inputs = self._manifest["source"], self._manifest["inputs"]
        if source != wanted["source"] and contents(inputs) != contents(wanted["inputs"]):
            raise StorageError(
                f"{self.path}: holds the result of `{self.command} {source}`;"
                " choose another --out, or remove it"
            )
        self.require_own_files()

    def require_own_files(self) -> None:
        """Raise StorageError if the folder holds foreign files besides a result."""
        if self._manifest is None:
            return
        if added := strangers(self.path, (MANIFEST, *self._manifest["outputs"])):
            raise StorageError(
                f"{added[0]}: not written by `{self.command}` and would be lost; move it elsewhere"
            )

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Context manager: lock the result against other processes, and restore it after a killed one.

        Raises StorageError at once if another process is writing.
        """
        with self._place.exclusive():
            self._manifest = self._read_manifest()
            self._held = True
            try:
                yield
            finally:
                self._held = False

    def building(self) -> AbstractContextManager[Path]:
        """Context manager: an empty folder that becomes the result, or is removed on an exception.

        Use within :meth:`exclusive`.
        """
        return self._place.building()

    def finish(
        self, folder: Path, wanted: Mapping[str, Any], report: Mapping[str, Any], dropped: Iterable[Dropped]
    ) -> Prepared:
        """Write the report, the dropped pieces and, last, the manifest into the ``folder`` being built."""
        write_report(folder, report, dropped)
        manifest = {**wanted, "outputs": self._files(folder)}
        (folder / MANIFEST).write_bytes(_json(manifest, indent=1))
        return Prepared(self.path, report, unchanged=False)

    def _files(self, folder: Path) -> dict[str, str]:
        """SHA-256 of every file below a folder except the manifest."""
        hashes = {}
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST):
            hashes[path.relative_to(folder).as_posix()] = sha256_file(path)
        return hashes


def write_report(folder: Path, report: Mapping[str, Any], dropped: Iterable[Dropped]) -> None:
    """Write the report and the dropped pieces. Raises OSError."""
    (folder / REPORT_FILE).write_bytes(_json(report, indent=1))
    (folder / _DROPPED).write_bytes(b"".join(_json(asdict(piece)) for piece in dropped))


def read_report(folder: Path) -> tuple[Any, list[Dropped]]:
    """The report and the dropped pieces of a folder. Raises StorageError."""
    report = read_json(folder / REPORT_FILE)
    with storage_errors(folder / _DROPPED), open_file(folder / _DROPPED) as file:
        return report, [Dropped(**json.loads(line)) for line in file]


def contents(inputs: Mapping[str, Any]) -> list[str]:
    """Sizes and hashes of inputs, regardless of their paths."""
    return sorted(map(repr, inputs.values()))


def _json(value: object, indent: int | None = None) -> bytes:
    return (json.dumps(value, indent=indent) + "\n").encode()
