"""Averaging of weights, and the conditions on validations that start it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lm.engine.config import OptimConfig
from lm.engine.optim import trainable
from lm.errors import StorageError
from lm.measures import nonmonotonic


def stale(history: Sequence[float]) -> int:
    """Number of validations since the best one; 0 without any validation."""
    return len(history) - 1 - history.index(min(history)) if history else 0


class Averager:
    """Average of the weights since ``average_start``: exponential (EMA), or uniform as in averaged SGD.

    Both average the iterates s = ``average_start + 1 … t``. The coefficients of the exponential average are
    proportional to d^(t − s). They sum to 1 by the bias correction of Kingma and Ba (2015, § 3). The first
    iterate of a short training therefore does not dominate. The uniform average is the mean (Polyak and
    Juditsky 1992).

    Averaging may also start at a validation. With ``average_trigger``, the first validation that triggers
    NT-ASGD starts it (Merity et al. 2018). With ``average_patience``, it starts after as many validations
    without a new best, and at the latest at the first one from ``average_start`` on (Melis et al. 2020).

    ``skip_first`` omits the first iterate from the uniform mean, as ``torch.optim.ASGD`` does. Buffers are
    not averaged.
    """

    def __init__(self, config: OptimConfig, model: nn.Module, *, skip_first: bool = False) -> None:
        self._config = config
        self._model = model
        self._skipped = int(skip_first)
        self._average: dict[str, Tensor] = {}
        self.count = 0  # iterates since averaging began
        waits = config.average_trigger or config.average_patience
        self.start: int | None = None if waits else config.average_start

    def observe(self, history: Sequence[float], step: int) -> bool:
        """Record all validations so far, the one at ``step`` last; True if it starts averaging."""
        config = self._config
        if self.start is not None:
            return False
        if config.average_patience:
            stalls = stale(history) >= config.average_patience or 0 < config.average_start <= step
        else:
            stalls = nonmonotonic(history, config.average_trigger)
        if stalls:
            self.start = step
        return stalls

    def takes(self, step: int) -> bool:
        """True if the weights after update number ``step`` (from 1) enter the average."""
        return self._config.average != "none" and self.start is not None and step > self.start

    def update(self, step: int) -> None:
        """Add the weights after update number ``step`` to the average."""
        if not self.takes(step):
            return
        parameters = trainable(self._model)
        self.count += 1
        if self.count == 1:
            self._average = {name: parameter.detach().clone() for name, parameter in parameters.items()}
            return
        if self._config.average == "uniform":
            share = 1.0 / (self.count - self._skipped)
        else:
            share = (1.0 - self._config.ema_decay) / (1.0 - self._config.ema_decay**self.count)
        weights: list[Tensor] = [parameter.detach() for parameter in parameters.values()]
        torch._foreach_lerp_(list(self._average.values()), weights, share)

    @contextmanager
    def swap(self) -> Iterator[None]:
        """Context in which the model holds the averages; before averaging begins, nothing changes."""
        trained = trainable(self._model).values() if self.count else ()
        parameters: list[Tensor] = [parameter.detach() for parameter in trained]
        kept = [parameter.clone() for parameter in parameters]
        _copy(parameters, list(self._average.values()))
        try:
            yield
        finally:
            _copy(parameters, kept)

    def tensors(self) -> dict[str, Tensor]:
        """The model's state_dict with averages instead of weights; empty before averaging begins."""
        if not self.count:
            return {}
        averages = {id(weight): self._average[name] for name, weight in trainable(self._model).items()}
        own = self._model.state_dict(keep_vars=True)
        return {name: averages.get(id(tensor), tensor.detach()) for name, tensor in own.items()}

    def load(self, tensors: Mapping[str, Tensor], count: int, start: int | None) -> None:
        """Restore :meth:`tensors`, count and start; StorageError if they do not fit the model."""
        parameters = trainable(self._model)
        self.count, self.start = count, start
        self._average = {}
        if not count:
            return
        for name, parameter in parameters.items():
            if name not in tensors or tensors[name].shape != parameter.shape:
                raise StorageError(
                    f"the saved averages do not fit the model at {name!r}; was config.json edited?"
                )
            self._average[name] = tensors[name].to(parameter, copy=True)


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
