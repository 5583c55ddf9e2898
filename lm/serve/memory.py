"""Allocation of memory in a process that decodes for a long time."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)
_LARGEST = 32 << 20  # bytes, the highest threshold that every glibc takes
_KEPT = 256 << 20  # bytes


def keep_freed_memory() -> None:
    """Let the process keep up to 256 MiB of freed memory, instead of returning it to the system.

    A step of decoding allocates some MiB, and fresh pages cost as much time as the arithmetic on them. It has
    no effect without glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST)
    mallopt(_TRIM_THRESHOLD, _KEPT)
