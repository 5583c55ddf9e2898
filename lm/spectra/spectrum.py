"""Singular values of a log-probability matrix: numerical ranks, saving and loading."""

import io
import math
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lm.disk.storage import read_file, write_atomic
from lm.errors import StorageError

KEPT = "analysis"  # folder of a run with its spectra
EPSILON = {kind: float(np.finfo(kind).eps) for kind in ("float64", "float32")}
_UNREADABLE = (  # exceptions of zipfile and NumPy for damaged files
    ValueError, KeyError, TypeError, EOFError, OSError, RuntimeError, SyntaxError, TokenError,
    zipfile.BadZipFile, zlib.error
)  # fmt: skip
_LIMIT = 1 << 30  # bytes of a spectrum's file
_ARRAYS = ("singular_values", "shape")
_TEXTS = ("weights_sha256", "ids_sha256", "checkpoint", "fingerprint")


def effective_rank(values: np.ndarray) -> float:
    """exp of the entropy of singular values that are divided by their sum (Roy & Vetterli 2007).

    It is n for n equal values. Zeros give 0.
    """
    total = float(values.sum())
    if not total:
        return 0.0
    shares = values[values > 0] / total
    return math.exp(float(-(shares * np.log(shares)).sum()))


@dataclass(frozen=True)
class RankResult:
    """Singular values of a (T, V) matrix of float64, largest first, with their model and text.

    ``fingerprint`` is that of the manifests of the ``checkpoint`` at the time of the measurement, so that
    later changes are found without the model.
    """

    singular_values: NDArray[np.float64]  # (min(T, V),)
    shape: tuple[int, int]
    weights_sha256: str = ""  # of the model; "" without a model
    ids_sha256: str = ""  # of the text's token ids
    checkpoint: str = ""  # best, last, average-best or step-N
    fingerprint: str = ""  # see CheckpointStore.fingerprint

    @property
    def dtype(self) -> str:
        """Type in which the matrix was computed and factorised."""
        return str(self.singular_values.dtype)

    @property
    def thresholds(self) -> dict[str, float]:
        """Thresholds below which a singular value counts as rounding error, by rule and precision.

        ``roundoff``: ½·√(m + n + 1)·σ_max·ε, the expected roundoff error of Press et al. (2007, Numerical
        Recipes, 3rd ed., p. 71), which the papers on high-rank language models use.
        ``numpy``: max(m, n)·σ_max·ε, the default of ``numpy.linalg.matrix_rank``.
        """
        m, n = self.shape
        largest = float(self.singular_values.max(initial=0.0))
        factors = {"roundoff": 0.5 * math.sqrt(m + n + 1), "numpy": float(max(m, n))}
        return {
            f"{rule}_{kind}": factor * largest * epsilon
            for rule, factor in factors.items()
            for kind, epsilon in EPSILON.items()
        }

    @property
    def ranks(self) -> dict[str, int]:
        """Number of singular values above each of the thresholds."""
        return {
            name: int((self.singular_values > threshold).sum()) for name, threshold in self.thresholds.items()
        }

    @property
    def rank(self) -> int:
        """Numerical rank, by the expected roundoff error in float64."""
        return self.ranks["roundoff_float64"]

    def save(self, path: Path) -> None:
        """Write the spectrum as ``.npz``, atomically. Raises StorageError."""
        content = io.BytesIO()
        np.savez(
            content,
            singular_values=self.singular_values,
            shape=np.array(self.shape, np.int64),
            weights_sha256=np.array(self.weights_sha256),
            ids_sha256=np.array(self.ids_sha256),
            checkpoint=np.array(self.checkpoint),
            fingerprint=np.array(self.fingerprint),
        )
        write_atomic(path, content.getvalue())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file of :meth:`save`. Raises StorageError if it is missing, damaged or foreign."""
        data = read_file(path, limit=_LIMIT)
        try:
            arrays = _arrays(data)
            values, shape = arrays["singular_values"], tuple(arrays["shape"].tolist())
            _require(
                values.dtype == np.float64 and values.ndim == 1, "singular values are a 1-d float64 array"
            )
            _require(len(shape) == 2 and min(shape) == len(values), "there are min(T, V) singular values")
            _require(
                bool(np.isfinite(values).all() and (values >= 0).all()), "singular values are not negative"
            )
            _require(bool((np.diff(values) <= 0).all()), "singular values are in falling order")
            texts = {name: str(arrays[name].item()) for name in _TEXTS}
        except _UNREADABLE as error:
            detail = " ".join(str(error).split())
            raise StorageError(f"{path}: not a stored spectrum ({detail}); measure the rank again") from error
        return cls(values, (shape[0], shape[1]), **texts)


def _arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """Arrays of an ``.npz`` by name, without unpickling."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        _require(sum(entry.file_size for entry in archive.infolist()) <= _LIMIT, "it is not too large")
        arrays = {}
        for name in (*_ARRAYS, *_TEXTS):
            with archive.open(f"{name}.npy") as entry:
                arrays[name] = np.lib.format.read_array(entry, allow_pickle=False)
    return arrays


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"violated: {what}")
