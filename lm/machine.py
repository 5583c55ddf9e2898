"""Processors and memory that this process may use."""

import os
from pathlib import Path

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def usable_processors() -> int:
    """Number of processors that this process may use, by its affinity where the system has one."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def memory_limit() -> int:
    """Memory limit of this process in bytes: the machine's, or its control group's if less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in map(Path, _LIMITS):
        try:
            total = min(total, int(path.read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return total
