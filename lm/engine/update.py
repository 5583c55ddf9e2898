"""One update of the weights: gradient accumulation, clipping by the global norm, optimiser step."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from lm.engine.config import OptimConfig, TrainConfig
from lm.engine.optim import trainable

BatchT = TypeVar("BatchT")


@dataclass(frozen=True, slots=True)
class StepLoss:
    """The loss of one batch."""

    objective: Tensor  # () differentiable sum over tokens, nats, regularisation included
    nll: Tensor  # () detached sum over tokens, nats
    tokens: int
    lr_scale: float = 1.0  # factor on the learning rate of this update, for windows of varying length


class Batches(Generic[BatchT]):
    """Rest of a pass over the data, read one batch ahead, so that the last batch is known as such."""

    def __init__(self, batches: Iterator[BatchT]) -> None:
        self._batches = batches
        self._ahead: list[BatchT] | None = None

    def take(self, count: int) -> list[BatchT]:
        """The next ``count`` batches; fewer at the end of the pass."""
        taken = [*(self._ahead or []), *islice(self._batches, count + (self._ahead is None))]
        self._ahead = taken[count:]
        return taken[:count]

    @property
    def ended(self) -> bool:
        """True if the last ``take`` ended the pass."""
        return not self._ahead


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over the batches of an update; the model holds the gradients of objective / ``divisor``."""

    objective: float
    nll: float
    tokens: int
    divisor: int
    grad_norm: float  # global 2-norm of the gradient of objective / tokens, before clipping
    lr_scale: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.objective) and math.isfinite(self.nll) and math.isfinite(self.grad_norm)


class Updater(Generic[BatchT]):
    """Updates ``model`` from batches; the gradient is that of Σ objective / Σ tokens over the batches."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[BatchT], StepLoss],
        optimizer: torch.optim.Optimizer,
        optim: OptimConfig,
        train: TrainConfig,
    ) -> None:
        self._parameters = list(trainable(model).values())
        self._loss = loss
        self._optimizer = optimizer
        self._clip_norm = optim.clip_norm
        self._bfloat16 = train.precision == "bfloat16"

    def gradients(self, batches: Iterable[BatchT]) -> Sums:
        """Compute the gradients of batches, accumulated in the model."""
        divisor, tokens = 0, 0
        losses: list[Tensor] = []  # (2,) objective and nll of each batch
        scales: list[float] = []
        for batch in batches:
            loss = self.forward(batch)
            divisor = divisor or max(1, loss.tokens)  # of the right magnitude, and exact for one batch
            (loss.objective / divisor).backward()
            tokens += loss.tokens
            losses.append(torch.stack([loss.objective.detach().double(), loss.nll.double()]))
            scales.append(loss.lr_scale)
        objective, nll = torch.stack(losses).sum(0)
        return self.sums((objective, nll, tokens), divisor, statistics.fmean(scales))

    def sums(self, totals: tuple[Tensor | float, Tensor | float, int], divisor: int, lr_scale: float) -> Sums:
        """Sums from ``totals`` (objective, nll, tokens) and the gradients of objective / ``divisor``."""
        norm = nn.utils.get_total_norm(self._gradients()).double()
        # one transfer from the device
        objective, nll, grad_norm = torch.stack(
            [norm.new_tensor(x) if isinstance(x, float) else x for x in (*totals[:2], norm)]
        ).tolist()
        tokens = max(1, totals[2])
        return Sums(objective, nll, tokens, divisor, grad_norm * divisor / tokens, lr_scale)

    def flat(self) -> Tensor:
        """A copy of all gradients in one vector; zeros for parameters without a gradient."""
        zeros_or = (p.new_zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in self._parameters)
        return torch.cat(list(zeros_or))

    def put(self, flat: Tensor) -> None:
        """Set the gradients to views of a vector as :meth:`flat` returns it."""
        start = 0
        for parameter in self._parameters:
            parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()

    def forward(self, batch: BatchT) -> StepLoss:
        """Loss of a batch in the precision of the training."""
        with torch.autocast(self._parameters[0].device.type, torch.bfloat16, self._bfloat16):
            return self._loss(batch)

    def apply(self, sums: Sums, lr: float) -> None:
        """Clip the gradients and update the weights."""
        scale = sums.divisor / sums.tokens
        if 0 < self._clip_norm < sums.grad_norm:
            scale *= self._clip_norm / sums.grad_norm
        if scale != 1.0:
            torch._foreach_mul_(self._gradients(), scale)
        for group in self._optimizer.param_groups:
            group["lr"] = lr * group["lr_ratio"]
        self._optimizer.step()

    def clear(self) -> None:
        """Drop the gradients."""
        self._optimizer.zero_grad(set_to_none=True)

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]
