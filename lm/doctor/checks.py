"""Checks that need no torch: versions, memory, disk, folders, terminal. None of them raises.

A check returns findings. No finding has a path under the home folder, a user name or a host name.
"""

import locale
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

from lm.config.places import DEFAULT_RUNS
from lm.disk.filelock import FileLock, cannot_lock, held
from lm.disk.storage import readable, temporary_folder, write_atomic
from lm.errors import HighrankError, visible
from lm.libraries import required_libraries
from lm.machine import memory_limit, usable_processors, visible_processors

State = Literal["ok", "warning", "problem"]
_ROOM = 1 << 30  # bytes of disk space and memory that small models need


@dataclass(frozen=True)
class Diagnosis:
    """Result of a check: its state, a sentence, and a remedy unless all is well."""

    check: str
    state: State
    says: str
    remedy: str = ""

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self | None:
        """The finding in a row; None if it is no row of ours."""
        if row.keys() != {field.name for field in fields(cls)} or row["state"] not in get_args(State):
            return None
        return cls(str(row["check"]), row["state"], str(row["says"]), str(row["remedy"]))


def careful(check: str, examine: Callable[[], Iterator[Diagnosis]]) -> list[Diagnosis]:
    """Findings of a check; an exception becomes one more, a problem."""
    found: list[Diagnosis] = []
    try:
        found.extend(examine())
    except HighrankError as error:
        says, _, remedy = private(visible(error)).partition("; ")
        found.append(Diagnosis(check, "problem", says[:300], remedy or "file an issue with this line"))
    except Exception as error:  # a doctor that crashes helps nobody
        says = private(f"{type(error).__name__}: {visible(error)}")[:300]
        found.append(Diagnosis(check, "problem", says, "file an issue with this line"))
    return found


def private(text: str) -> str:
    """A text without the home folder."""
    home = os.path.expanduser("~")
    return text.replace(home, "~") if len(home) > 1 else text


def light_checks() -> list[Diagnosis]:
    """All checks of this module."""
    checks: Sequence[tuple[str, Callable[[], Iterator[Diagnosis]]]] = (
        ("versions", _versions),
        ("processors", _processors),
        ("memory", _memory),
        ("disk", _disk),
        ("folders", _folders),
        ("terminal", _terminal),
    )
    return [found for name, examine in checks for found in careful(name, examine)]


def _versions() -> Iterator[Diagnosis]:
    """Python, and the required libraries."""
    old, missing, found = [], [], []
    for library in required_libraries():
        if not library.installed:
            missing.append(library.name)
            continue
        found.append(f"{library.name} {library.installed}")
        if library.too_old:
            old.append(f"{library.name} {library.installed} (needs {library.least})")
    python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if missing or old:
        absent = f"missing: {', '.join(missing)}" * bool(missing)
        says = "; ".join(filter(None, [absent, ", ".join(old), python, ", ".join(sorted(found))]))
        yield Diagnosis("versions", "problem", says, "install again: pip install -c constraints.txt -e .")
    else:
        yield Diagnosis("versions", "ok", f"{python}; {', '.join(sorted(found))}")


def _processors() -> Iterator[Diagnosis]:
    """Processors of this process, against the threads that OMP_NUM_THREADS asks for."""
    usable = usable_processors()
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    says = f"{usable} usable of {os.cpu_count()}, OMP_NUM_THREADS {wanted or 'unset'}"
    if wanted and not wanted.isdecimal():
        yield Diagnosis("processors", "warning", says, "set OMP_NUM_THREADS to a number, or unset it")
    elif (int(wanted) if wanted else visible_processors()) > usable:
        remedy = f"export OMP_NUM_THREADS={usable}: more threads than processors are slow"
        yield Diagnosis("processors", "warning", says, remedy)
    else:
        yield Diagnosis("processors", "ok", says)


def _memory() -> Iterator[Diagnosis]:
    limit = memory_limit()
    try:
        fields = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.M))
        free = min(limit, 1024 * int(fields["MemAvailable"]))
        says = f"{readable(free, up=False)} free of {readable(limit, up=False)}"
    except (OSError, KeyError):  # another system than Linux
        free, says = limit, readable(limit, up=False)
    if free < _ROOM:
        yield Diagnosis("memory", "warning", says, "close other programs, or train a smaller model")
    else:
        yield Diagnosis("memory", "ok", says)


def _disk() -> Iterator[Diagnosis]:
    for name, folder in (("the working folder", Path), ("temporary files", temporary_folder)):
        free = shutil.disk_usage(folder()).free
        state: State = "ok" if free >= _ROOM else "warning"
        remedy = "" if state == "ok" else f"free {readable(_ROOM)} there, or work in another folder"
        yield Diagnosis("disk", state, f"{readable(free, up=False)} free for {name}", remedy)


def _folders() -> Iterator[Diagnosis]:
    """Working, run and temporary folder: files can be written, synced, locked and removed."""
    folders: dict[str, Callable[[], Path]] = {"working folder": Path, "temporary": temporary_folder}
    if DEFAULT_RUNS.is_dir():
        folders["runs"] = lambda: DEFAULT_RUNS
    for name, folder in folders.items():
        try:
            with tempfile.TemporaryDirectory(prefix=".highrank-doctor-", dir=folder()) as inner:
                write_atomic(Path(inner) / "file", b"x")
                locked = _locks(Path(inner) / "lock")
            if locked:
                yield Diagnosis("folders", "ok", f"{name}: writable, and files can be locked")
            else:
                says = f"{name}: locks of files have no effect there"
                yield Diagnosis("folders", "problem", says, "choose a folder on another file system")
        except (OSError, HighrankError) as error:
            remedy = "choose a folder that you may write to" if name != "temporary" else "set TMPDIR"
            if cannot_lock(error):
                remedy = "choose a folder on another file system"
            reason = visible(error).partition("; ")[0].rpartition(": ")[2]  # without the path
            says = f"{name}: {getattr(error, 'strerror', None) or reason}"
            yield Diagnosis("folders", "problem", says, remedy)


def _locks(path: Path) -> bool:
    """True if a lock is noticed while it is held, and only then."""
    with FileLock(path):
        noticed = held(path)
    return noticed and not held(path)


def _terminal() -> Iterator[Diagnosis]:
    encoding = (sys.stdout.encoding or "none").lower()
    size = shutil.get_terminal_size()
    kind = "a terminal" if sys.stdout.isatty() else "a file or pipe"
    says = (
        f"output to {kind}, {size.columns} columns, TERM {visible(os.environ.get('TERM', 'unset'))},"
        f" {encoding}, locale {visible(locale.setlocale(locale.LC_CTYPE))}"
    )
    if encoding.replace("-", "") != "utf8":
        remedy = "export LC_ALL=C.UTF-8, or PYTHONUTF8=1, to show every character"
        yield Diagnosis("terminal", "warning", says, remedy)
    else:
        yield Diagnosis("terminal", "ok", says)
