"""Large tensors in memory of their own, which returns to the system as soon as they are freed.

The heap of the C library would keep such blocks, and often cannot reuse them, because a block of the same
size no longer fits between smaller ones. Large pages also spare products many misses of the address cache.
"""

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

LARGE = 2**21  # bytes of a large page; smaller tensors come from the heap


def zeros(like: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """Zeros of a shape, on the device of ``like`` and in its dtype unless ``dtype`` is given."""
    dtype = dtype or like.dtype
    size = math.prod(shape) * dtype.itemsize
    if like.device.type != "cpu" or size < LARGE:
        return like.new_zeros(shape, dtype=dtype)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:  # torch's own error says how much memory was missing
        return like.new_zeros(shape, dtype=dtype)
    with suppress(AttributeError, OSError):  # of a system without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
