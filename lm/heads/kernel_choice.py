"""Choice between the Triton kernels of :mod:`lm.heads.fused` and tensor operations."""

import os
from functools import cache
from importlib.util import find_spec
from types import ModuleType

from lm.heads.fused_switch import FUSED, tell_without_fused


def kernels_of(device_type: str) -> str:
    """Kernels that losses may use on a type of device; bit-identical results depend on them."""
    fused = device_type == "cuda" and fused_kernels() is not None
    return "fused" if fused else "in tensor operations"


def fused_kernels() -> ModuleType | None:
    """:mod:`lm.heads.fused`; None if switched off or without Triton, or, with a warning, if broken."""
    return None if os.environ.get(FUSED) == "0" else _fused_kernels()


@cache
def _fused_kernels() -> ModuleType | None:
    if find_spec("triton") is None:
        return None
    try:
        from lm.heads import fused
    except Exception as error:  # a Triton of another Python, driver or compiler may raise anything
        tell_without_fused(f"{type(error).__name__}: {error}".splitlines()[0])
        return None
    return fused
