"""Processors and memory that this process may use."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")  # the control groups of the system
_OWN = Path("/proc/self/cgroup")  # names of those of this process


def usable_processors() -> int:
    """Number of processors that this process may use, by its affinity where the system has one."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def memory_limit() -> int:
    """Memory limit of this process in bytes: the machine's, or that of its control groups if less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder in (*control_groups("memory"), _GROUPS, _GROUPS / "memory"):  # the last without /proc
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # no such file, or "max"
                total = min(total, int((folder / name).read_text()))
    return total


def control_groups(controller: str) -> Iterator[Path]:
    """Folders of the control groups of this process, the innermost first; the limits of all hold.

    A container may not have the folder of the name, which is that outside of it, but has the outermost one.
    """
    with suppress(OSError):
        for line in _OWN.read_text(errors="surrogateescape").splitlines():
            _, controllers, name = line.split(":", 2)
            if not controllers or controller in controllers.split(","):  # none: version 2, one for all
                root = _GROUPS / controllers
                own = root / name.lstrip("/")
                yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(root))
