"""Processors that this process may use."""

import os


def usable_processors() -> int:
    """Number of processors that this process may use, by its affinity where the system has one."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1
