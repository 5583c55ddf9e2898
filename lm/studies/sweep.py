"""Sweeps of trainings, each stored at once, and the training of one model."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lm.disk.filelock import FileLock
from lm.disk.jsonfile import canonical_json, parse_json, write_json
from lm.disk.storage import make_folder, read_file, write_atomic
from lm.engine.config import OptimConfig
from lm.engine.device import flushed_denormals
from lm.engine.optim import build_optimizer
from lm.engine.schedule import Schedule
from lm.errors import StorageError
from lm.runs.inputs import CONFIG
from lm.steps import OnProgress
from lm.studies.row_rms import RowRms

_LIMIT = 1 << 26  # bytes of a file of points


class Sweep:
    """A sweep of ``total`` trainings into ``folder``, with its progress.

    The file ``points`` of the folder has a line per measured point, with its settings. So the same sweep
    resumes after an interruption, and a longer one trains only new points. Processes that share the folder
    lose no point, but each trains all points that were missing when it began. ``measures`` are the required
    keys of a result, and their types. StorageError if the folder is a run or cannot be written, the file
    cannot be read, or a line of it is not a point.
    """

    def __init__(
        self, folder: Path, points: str, measures: Mapping[str, type], total: int, progress: OnProgress
    ) -> None:
        if (folder / CONFIG).exists():
            raise StorageError(f"{folder}: is the folder of a run; choose a new or empty --out")
        make_folder(folder)
        self._folder, self._path, self._measures = folder, folder / points, measures
        self._lock = FileLock(folder / f".{points}.lock")
        self._lines = self._read()  # lines by settings
        self._done, self._total, self._progress = 0, total, progress

    def _read(self) -> dict[bytes, bytes]:
        path, found = self._path, {}
        lines = read_file(path, limit=_LIMIT).splitlines() if path.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                point: Any = parse_json(line, path)
            except StorageError:
                point = None
            match point:
                case {"settings": dict(settings), "result": dict(result)} if self._complete(result):
                    found[canonical_json(settings)] = line
                case _:
                    raise StorageError(f"{path}:{number}: not a point of a sweep; remove the line")
        return found

    def _complete(self, result: Mapping[str, Any]) -> bool:
        return all(isinstance(result.get(name), kind) for name, kind in self._measures.items())

    def measured(self, settings: Mapping[str, Any], train: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the stored result of the next training, or train and store it."""
        self._progress(self._done, self._total)
        self._done += 1
        key = canonical_json(settings)
        if key not in self._lines:
            line = canonical_json({"settings": settings, "result": train()})
            with self._lock:  # another process may have added points
                self._lines = self._read() | {key: line}
                write_atomic(self._path, b"".join(line + b"\n" for line in self._lines.values()))
        point: Any = parse_json(self._lines[key], self._path)  # exactly as another process reads it
        result: dict[str, Any] = point["result"]
        return result

    def finished(self, name: str, result: dict[str, Any]) -> dict[str, Any]:
        """Write the result of the whole sweep to the file ``name`` of the folder, and return it."""
        self._progress(self._total, self._total)
        write_json(self._folder / name, result)
        return result


def cosine_adam(steps: int, lr: float) -> OptimConfig:
    """Config of Adam with a warm-up and a cosine schedule, without clipping, for heads."""
    warmup = min(20, steps - 1)
    return OptimConfig(
        lr=lr, betas=(0.9, 0.99), schedule="cosine", warmup_steps=warmup, decay_steps=steps, clip_norm=0
    )


@flushed_denormals()
def descend(
    model: nn.Module, loss_of: Callable[[], Tensor], optim: OptimConfig, states: Tensor | None = None
) -> list[float]:
    """Minimise a loss by ``optim.decay_steps`` updates. Return the loss before each update.

    ``states``, a matrix (C, H) besides the model, is trained too, with :class:`RowRms`.
    """
    optimizers: list[Optimizer] = [build_optimizer(optim, model, "float32")]
    if states is not None:
        optimizers.append(RowRms([states], optim.betas[1], optim.eps))
    schedule, losses = Schedule(optim), list[float]()
    for step in range(optim.decay_steps):
        loss = loss_of()
        losses.append(loss.item())
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        if optim.clip_norm > 0:
            nn.utils.clip_grad_norm_(model.parameters(), optim.clip_norm)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = schedule.lr(step)
            optimizer.step()
    return losses
