"""A language model of a few hundred weights, with dropout and carried state, to test the engine on."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dialog.config import DialogConfig
from lm.config.load import Resolved
from lm.engine.config import OptimConfig, TrainConfig
from lm.engine.events import Event, Note
from lm.engine.loop import FitResult, fit
from lm.engine.rng import seed_everything
from lm.engine.update import StepLoss
from lm.runs.run import Run

V, H, B, T = 11, 6, 3, 4  # vocabulary, hidden size, streams, window length


class TinyModel(nn.Module):
    """Has what makes saving hard: a tied weight, a frozen one, and a buffer that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, H)
        self.dropout = nn.Dropout(0.3)
        self.cell = nn.GRUCell(H, H)
        self.output = nn.Linear(H, V)
        self.output.weight = self.embedding.weight
        self.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.register_buffer("uses", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T), (B, H) → logits (B, T, V), hidden (B, H)."""
        if self.training:
            self.uses += 1
        outputs = []
        for step in self.dropout(self.embedding(tokens)).unbind(1):
            hidden = self.cell(step, hidden)
            outputs.append(hidden)
        return self.output(self.dropout(torch.stack(outputs, 1))), hidden


@dataclass
class Faults:
    """What goes wrong, by the number of the call, counted from 1 in every process."""

    nan_loss: Callable[[int], bool] = lambda call: False
    nan_gradient: Callable[[int], bool] = lambda call: False
    on_loss: Callable[[int], None] = lambda call: None
    on_window: Callable[[int], None] = lambda call: None
    nll: Callable[[int], float] | None = None


@dataclass
class TinyTask:
    """Batches are windows of a random text; the hidden state is carried between the windows of an epoch."""

    faults: Faults = field(default_factory=Faults)
    seed: int = 1
    length: int = 5  # windows of an epoch
    losses: int = 0
    windows: int = 0
    validations: int = 0
    skips: list[int] = field(default_factory=list)  # batches of each update that was skipped

    def __post_init__(self) -> None:
        seed_everything(self.seed)
        self.model = TinyModel()
        self.hidden = torch.zeros(B, H)

    def epoch(self, number: int, start: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(1000 * self.seed + number)
        windows = torch.randint(V, (self.length, B, T + 1), generator=generator)
        if start == 0:
            self.hidden = torch.zeros(B, H)
        yield from windows[start:]

    def epoch_length(self) -> int:
        return self.length

    def loss(self, batch: Tensor) -> StepLoss:
        self.losses += 1
        self.faults.on_loss(self.losses)
        logits, hidden = self.model(batch[:, :-1], self.hidden)
        self.hidden = hidden.detach()
        nll = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")
        objective = nll
        if self.faults.nan_loss(self.losses):
            self.hidden = self.hidden * torch.nan
            objective = nll = nll * torch.nan
        if self.faults.nan_gradient(self.losses):  # d√x/dx is infinite at 0, times 0 is NaN; the value is 0
            objective = nll + (0 * self.model.cell.bias_hh[0]).sqrt()
        return StepLoss(objective, nll.detach(), batch[:, 1:].numel(), 0.5 + 0.1 * float(batch[0, 0]))

    def skipped(self, batches: Sequence[Tensor]) -> None:
        self.skips.append(len(batches))

    def shard(self, batch: Tensor, index: int, count: int) -> Tensor | None:
        """The whole batch in the first shard; the others are empty, because the hidden state is one."""
        return None if index else batch

    def validation(self) -> Iterator[tuple[float, int]]:
        self.validations += 1
        assert not self.model.training
        hidden = torch.zeros(B, H)
        for window in torch.randint(V, (3, B, T + 1), generator=torch.Generator().manual_seed(7)):
            self.windows += 1
            self.faults.on_window(self.windows)
            torch.rand(1)  # must not disturb the training
            logits, hidden = self.model(window[:, :-1], hidden)
            self.hidden = hidden  # nor must this
            nll = nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten()).item()
            yield (nll if self.faults.nll is None else self.faults.nll(self.validations)), 1

    def state(self) -> dict[str, Tensor]:
        return {"hidden": self.hidden}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        self.hidden = tensors["hidden"]


class Notes:
    """Reporter that keeps the notes."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Note):
            self.lines.append(event.line)


@contextmanager
def run_folder() -> Iterator[Path]:
    """A run folder to be, in memory where there is such a place: syncing costs nothing there."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path) / "run"


def open_run(folder: Path) -> Run:
    return Run.open(folder, Resolved(DialogConfig(), {}), resumable_keys=frozenset())


def train(
    folder: Path,
    train: Mapping[str, Any],
    optim: Mapping[str, Any] | None = None,
    task: TinyTask | None = None,
    notes: Notes | None = None,
) -> FitResult:
    """Trains a tiny task in a run folder, as a new process would."""
    task = task or TinyTask()
    with open_run(folder) as run:
        return fit(task, TrainConfig(**train), OptimConfig(**(optim or {})), run, notes or Notes())


def steps(folder: Path) -> list[int]:
    """The steps whose commits are kept."""
    return sorted(int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*"))


def lines(folder: Path) -> list[dict[str, Any]]:
    """The records of metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def with_values(values: list[float]) -> TinyTask:
    """A task whose validations have these nats a token, one after the other."""
    return TinyTask(Faults(nll=lambda call: values[call - 1]))
