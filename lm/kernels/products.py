"""Products of a few rows with one matrix, many times over: compiled, or in tensor operations.

Both give rows · matrixᵀ. They differ in rounding only.
"""

import ctypes
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from lm.kernels import native

FEW_PRODUCTS = 16  # products up to which packing a matrix costs more than it saves
WIDTH = 32  # columns of a panel, as products.cpp has them


class Products(ABC):
    """With one matrix (m, n), which does not change."""

    @abstractmethod
    def write(self, rows: Tensor, out: Tensor) -> Tensor:
        """rows (R, n) · matrixᵀ in ``out`` (R, m), which is returned."""

    @abstractmethod
    def add(self, rows: Tensor, out: Tensor) -> None:
        """The same on top of what ``out`` holds."""


def products_with(matrix: Tensor, count: int) -> Products:
    """The fastest for so many products; columns of rows and results lie side by side in memory."""
    compiled = matrix.device.type == "cpu" and matrix.dtype == torch.float32 and count > FEW_PRODUCTS
    library = native.library() if compiled else None
    return EagerProducts(matrix) if library is None else CompiledProducts(library, matrix)


class EagerProducts(Products):
    """In tensor operations, for every precision and device."""

    def __init__(self, matrix: Tensor) -> None:
        self._transposed = matrix.t()

    def write(self, rows: Tensor, out: Tensor) -> Tensor:
        return torch.mm(rows, self._transposed, out=out)

    def add(self, rows: Tensor, out: Tensor) -> None:
        out.addmm_(rows, self._transposed)


class CompiledProducts(Products):
    """By ``products.cpp``, in float32 on a CPU."""

    def __init__(self, library: ctypes.CDLL, matrix: Tensor) -> None:
        self._columns, self._inner = matrix.shape
        self._threads = torch.get_num_threads()
        self._packed = matrix.new_empty(-(-self._columns // WIDTH) * WIDTH * self._inner)
        self._product = library.product
        self._product.argtypes = [_P, _L, _P, _L, _L, _L, _P, _L, ctypes.c_int, ctypes.c_int]
        library.pack_panels.argtypes = [_P, _L, _L, _L, _L, _P, ctypes.c_int]
        steps = (matrix.stride(1), matrix.stride(0))
        library.pack_panels(
            matrix.data_ptr(), self._inner, self._columns, *steps, self._packed.data_ptr(), self._threads
        )

    def write(self, rows: Tensor, out: Tensor) -> Tensor:
        self._call(rows, out, False)
        return out

    def add(self, rows: Tensor, out: Tensor) -> None:
        self._call(rows, out, True)

    def _call(self, rows: Tensor, out: Tensor, add: bool) -> None:
        count = rows.shape[0]
        if rows.shape[1] != self._inner or out.shape != (count, self._columns):
            raise ValueError(
                f"{tuple(rows.shape)} times ({self._inner}, {self._columns}) into {tuple(out.shape)}"
            )
        gaps = any(one.stride(1) != 1 and one.shape[1] > 1 for one in (rows, out))
        if gaps or {rows.dtype, out.dtype} != {torch.float32}:
            raise ValueError("a kernel needs float32 with columns side by side in memory")
        self._product(
            rows.data_ptr(), rows.stride(0), self._packed.data_ptr(), count, self._inner, self._columns,
            out.data_ptr(), out.stride(0), add, self._threads,
        )  # fmt: skip


_P, _L = ctypes.c_void_p, ctypes.c_long
