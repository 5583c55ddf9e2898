"""Learning-rate schedules.

The learning rate is a function of the step and of the validations so far. Its only state is :class:`Plateau`,
which checkpoints save, so the rate resumes exactly.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lm.disk.jsonfile import JSON
from lm.engine.config import OptimConfig

ONE_CYCLE_START = 1 / 25  # of the peak (Smith and Topin 2018, as in torch's OneCycleLR)


@dataclass
class Plateau:
    """State of the plateau schedule."""

    stale: int = 0  # validations since the last better one, or since the last drop
    factor: float = 1.0  # on the learning rate


def _cosine(done: float) -> float:
    """Half a cosine wave from 1 at 0 to 0 at 1."""
    return 0.5 * (1.0 + math.cos(math.pi * done))


class Schedule:
    """Learning-rate schedule: warm-up, then constant, cosine, one cycle, or lower when validation stalls."""

    def __init__(self, config: OptimConfig) -> None:
        self._config = config
        self._plateau = Plateau()

    def lr(self, step: int) -> float:
        """The rate of the update that follows ``step`` finished ones."""
        config = self._config
        warmup = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
        if config.schedule == "one_cycle" and warmup < 1.0:
            return config.lr * (1.0 - (1.0 - ONE_CYCLE_START) * _cosine(warmup))
        if config.schedule in ("cosine", "one_cycle"):
            span = config.decay_steps - config.warmup_steps
            share = _cosine(min(1.0, max(0.0, (step - config.warmup_steps) / span)))
            return config.lr * warmup * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * share)
        return config.lr * warmup * self._plateau.factor

    def observe(self, better: bool) -> None:
        """Record if a validation was better. Only the plateau schedule uses it."""
        config, plateau = self._config, self._plateau
        if config.schedule != "plateau":
            return
        plateau.stale = 0 if better else plateau.stale + 1
        if plateau.stale > config.plateau_patience:
            plateau.factor = max(config.min_lr_ratio, plateau.factor * config.plateau_factor)
            plateau.stale = 0

    def state(self) -> dict[str, JSON]:
        return asdict(self._plateau)

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state`; raises TypeError for other keys."""
        self._plateau = Plateau(**state)
