"""State of a training that a commit holds: weights, optimiser, random generators, progress."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lm.disk.jsonfile import JSON
from lm.engine.averaging import Averager
from lm.engine.optim import load_optimizer_tensors, optimizer_tensors
from lm.engine.rng import load_rng, rng_tensors
from lm.engine.schedule import Schedule
from lm.errors import StorageError
from lm.runs.checkpoint import Commit

IN_A_ROW = 10
GUARD_WINDOW = 1_000
IN_WINDOW = 50  # 5 % of the window


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The model's state_dict without copies: buffers too, tied tensors under each of their names."""
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def load_model_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy weights or averages into the model; raises StorageError if they do not fit."""
    if reason := misfit(model_tensors(model), tensors):
        raise StorageError(f"the saved weights do not fit the model: {reason}; was config.json edited?")
    model.load_state_dict(tensors)


def misfit(here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> str:
    """First difference between two models in names and shapes, ``""`` without one. Values are not read."""
    for name, tensor in here.items():
        if name not in there:
            return f"{name} is missing there"
        if there[name].shape != tensor.shape:
            return f"{name} is {_sizes(there[name])} there, and {_sizes(tensor)} here"
    return next((f"{name} is missing here" for name in there if name not in here), "")


def _sizes(tensor: Tensor) -> str:
    return " × ".join(f"{size:,}" for size in tensor.shape) or "one number"


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """True if no element of any floating-point tensor is NaN or infinite."""
    checks = [torch.isfinite(tensor).all() for tensor in tensors if tensor.is_floating_point()]
    return not checks or bool(torch.stack([check.cpu() for check in checks]).all())


@dataclass
class Guard:
    """Counts the updates skipped because the loss or the gradient norm was not finite."""

    in_a_row: int = 0
    recent: list[list[int]] = field(default_factory=list)  # [step, epoch, batch] of the last 1,000 steps
    recoveries: int = 0  # returns to the last good checkpoint

    def passed(self) -> None:
        """Note an update that was not skipped."""
        self.in_a_row = 0

    def skipped(self, step: int, epoch: int, batch: int) -> None:
        """Note a skipped update, and forget those of 1,000 steps ago."""
        self.in_a_row += 1
        self.recent = [entry for entry in self.recent if entry[0] > step - GUARD_WINDOW]
        self.recent.append([step, epoch, batch])

    @property
    def exhausted(self) -> bool:
        """True if ten updates in a row, or 5 % of the last 1,000, were skipped."""
        return self.in_a_row >= IN_A_ROW or len(self.recent) >= IN_WINDOW

    def describe(self) -> str:
        """The skipped updates: their number, the first and the last, ``step 7 (epoch 1, batch 6)``."""
        ends = (self.recent[0], self.recent[-1])
        first, last = (f"step {step} (epoch {epoch}, batch {batch})" for step, epoch, batch in ends)
        return last if len(self.recent) == 1 else f"{len(self.recent)} updates, from {first} to {last}"


@dataclass
class LogWindow:
    """Sums over the updates since the last line of metrics.jsonl."""

    nll: float = 0.0
    tokens: int = 0
    grad_norm: float = 0.0
    updates: int = 0


@dataclass
class Progress:
    """Position of a training; saved in every commit and independent of the clock."""

    step: int = 0  # number of updates, skipped ones included
    epoch: int = 0  # finished passes over the data
    index: int = 0  # batches consumed of the current pass
    validated: int = -1  # step of the last validation
    judged: float | None = None  # nll of the last validation; None before an update, and if not finite
    stale: int = 0  # validations since the last one that was better by min_delta
    history: list[float] = field(default_factory=list)  # finite nll of validations after updates
    reference: float | None = None  # nll that a better validation must undercut by min_delta
    best: list[tuple[float, int]] = field(default_factory=list)  # (nll, step), best first
    lr_factor: float = 1.0  # halved by a recovery
    late_scale: float | None = None  # lr_scale of the previous update, for the authors' delayed averaging
    anchor: int = -1  # step of the last commit due by step after a finite update: the one to recover from
    anchor_best: list[int] = field(default_factory=list)  # steps in ``best`` at the anchor, kept for it
    saturated: bool = False  # contexts of the head at the last validation
    window: LogWindow = field(default_factory=LogWindow)
    guard: Guard = field(default_factory=Guard)

    @property
    def pass_number(self) -> int:
        """Pass of the last batch, from 1; 0 before the first batch."""
        return self.epoch + (self.index > 0)

    def passed(self, nll: float, tokens: int, grad_norm: float) -> None:
        """Record a finite update."""
        self.guard.passed()
        self.window.nll += nll
        self.window.tokens += tokens
        self.window.grad_norm += grad_norm
        self.window.updates += 1

    def judge(self, nll: float, min_delta: float, keep: int) -> bool:
        """Record a validation at this step; True if it is the best so far. NaN never is."""
        self.validated, self.judged = self.step, nll if self.step and math.isfinite(nll) else None
        self.stale += 1
        if not math.isfinite(nll):
            return False
        if self.step:
            self.history.append(nll)
        if self.reference is None or nll < self.reference - min_delta:
            self.reference, self.stale = nll, 0
        self.best = sorted([*self.best, (nll, self.step)])[:keep]
        return self.best[0][1] == self.step

    def values(self) -> dict[str, JSON]:
        return asdict(self)

    @classmethod
    def load(cls, values: Any) -> "Progress":
        """Restore the result of :meth:`values`; raises KeyError, TypeError or ValueError for other input."""
        best = [(float(nll), int(step)) for nll, step in values["best"]]
        parts = {"best": best, "window": LogWindow(**values["window"]), "guard": Guard(**values["guard"])}
        return cls(**(values | parts))


class Stateful(Protocol):
    """A model in training and the state carried from batch to batch."""

    @property
    def model(self) -> nn.Module: ...

    def state(self) -> dict[str, Tensor]:
        """Carried state, such as hidden states. Its tensors are replaced, never modified in place."""

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore the result of :meth:`state`."""


class Bookmark:
    """Copy of everything that computing a loss changes: carried state, buffers, random generators."""

    def __init__(self, task: Stateful) -> None:
        self._task = task
        self._carried = task.state()
        self._buffers = [(buffer, buffer.clone()) for buffer in task.model.buffers()]
        self._rng = rng_tensors()

    def restore(self) -> None:
        """Undo all computations since the bookmark was made."""
        self._task.load_state(self._carried)
        load_rng(self._rng)
        for buffer, kept in self._buffers:
            buffer.copy_(kept)


@dataclass
class TrainingState:
    """Complete state of a training, sufficient to resume it exactly."""

    task: Stateful
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    averager: Averager
    progress: Progress

    def groups(self) -> dict[str, dict[str, Tensor]]:
        """The tensors of a commit."""
        model = self.task.model
        return {
            "model": model_tensors(model),
            "optimizer": optimizer_tensors(self.optimizer, model),
            "average": self.averager.tensors(),
            "task": self.task.state(),
            "rng": rng_tensors(),
        }

    def values(self) -> dict[str, JSON]:
        """The plain values of a commit."""
        return {
            "progress": self.progress.values(),
            "schedule": self.schedule.state(),
            "averaged": self.averager.count,
            "average_start": self.averager.start,
        }

    def finite(self) -> bool:
        """True if weights, optimiser state and averages are all finite."""
        groups = self.groups()
        return all_finite(
            tensor for name in ("model", "optimizer", "average") for tensor in groups[name].values()
        )

    def load(self, commit: Commit) -> None:
        """Return to a commit; StorageError if it does not fit the model or is of another version."""
        try:
            self.restore(commit.tensors, commit.state)
        except (KeyError, TypeError, ValueError) as error:
            remedy = "train in a new --run folder"
            raise StorageError(f"{commit.path}: of another version of Highrank; {remedy}") from error

    def restore(self, tensors: Callable[[str], dict[str, Tensor]], values: Any) -> None:
        """Restore the ``tensors`` of each of :meth:`groups`, and :meth:`values`."""
        self.progress = Progress.load(values["progress"])
        self.schedule.load(values["schedule"])
        start = values.get("average_start", self.averager.start)
        self.averager.load(tensors("average"), int(values["averaged"]), start)
        load_model_tensors(self.task.model, tensors("model"))
        load_optimizer_tensors(self.optimizer, self.task.model, tensors("optimizer"))
        self.task.load_state(tensors("task"))
        load_rng(tensors("rng"))
