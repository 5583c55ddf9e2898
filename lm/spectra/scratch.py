"""A matrix in a temporary file, for factorisations larger than memory."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lm.disk.storage import require_space, storage_errors

Matrix = NDArray[np.float64]
ITEM = 8  # bytes of a float64


class ScratchMatrix:
    """A (rows, columns) matrix of float64, initially zero, in an unnamed temporary file. A context manager.

    It uses no memory between calls. The file vanishes when the process ends, even by a kill. Raises
    StorageError if the folder has no room or cannot be written to.
    """

    def __init__(self, rows: int, columns: int, folder: Path) -> None:
        self.shape = rows, columns
        self._folder, self._size = folder, rows * columns * ITEM
        require_space(folder, self._size)
        with storage_errors(folder, self._size):
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (closed by __exit__)
            self._file.truncate(self._size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, rows: slice, columns: slice) -> Matrix:
        """Copy a part to memory."""
        first, last, left, right = self._bounds(rows, columns)
        values = np.empty((last - first, right - left))
        with storage_errors(self._folder, self._size):
            for offset, run in self._runs(first, left, values):
                self._file.seek(offset)
                while run.nbytes:
                    count = self._file.readinto(run)
                    if not count:
                        raise OSError(0, "a temporary file was cut short")
                    run = run[count:]
        return values

    def write(self, rows: slice, columns: slice, values: Matrix) -> None:
        """Replace a part with ``values`` of its shape."""
        first, last, left, right = self._bounds(rows, columns)
        values = np.ascontiguousarray(values)
        if values.shape != (last - first, right - left):
            raise ValueError(f"values of shape {values.shape} for a part of {(last - first, right - left)}")
        with storage_errors(self._folder, self._size):
            for offset, run in self._runs(first, left, values):
                self._file.seek(offset)
                while run.nbytes:
                    run = run[self._file.write(run) :]

    def _bounds(self, rows: slice, columns: slice) -> tuple[int, int, int, int]:
        (first, last, _), (left, right, _) = rows.indices(self.shape[0]), columns.indices(self.shape[1])
        return first, max(first, last), left, max(left, right)

    def _runs(self, first: int, left: int, values: Matrix) -> Iterator[tuple[int, memoryview]]:
        """Yield the parts of ``values`` that are contiguous in the file: all of it, or each row."""
        if values.size:
            whole = values.shape[1] == self.shape[1]
            for index, part in enumerate([values] if whole else values):
                yield ((first + index) * self.shape[1] + left) * ITEM, part.data.cast("B")
