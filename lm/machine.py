"""Processors and memory that this process may use."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")  # the control groups of the system
_OWN = Path("/proc/self/cgroup")  # names of those of this process


def visible_processors() -> int:
    """Number of processors that this process may run on, by its affinity where the system has one."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def usable_processors() -> int:
    """Number of processors that keep this process busy: the visible ones, or fewer by its control groups."""
    count, share = visible_processors(), processor_share()
    return count if share is None else max(1, min(count, round(share)))


def processor_share() -> float | None:
    """Processors whose time the control groups of this process allow; None without a limit."""
    found = list[float]()
    for folder in (*control_groups("cpu"), _GROUPS, _GROUPS / "cpu"):  # the last two without /proc
        for read in (_quota, _quota_of_version_1):
            with suppress(OSError, ValueError):  # no such file, or "max"
                quota, period = read(folder)
                if quota > 0 and period > 0:  # -1: no limit, in version 1
                    found.append(quota / period)
    return min(found, default=None)


def _quota(group: Path) -> tuple[int, int]:
    """Microseconds of processor time in a period of microseconds."""
    quota, period = (group / "cpu.max").read_text().split()
    return int(quota), int(period)


def _quota_of_version_1(group: Path) -> tuple[int, int]:
    quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    return quota, period


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
