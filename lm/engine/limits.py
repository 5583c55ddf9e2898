"""Limits of a training: updates, passes, minutes, and validations without improvement."""

import math
from collections.abc import Iterator

from lm.engine.config import OptimConfig, TrainConfig
from lm.engine.events import Goal
from lm.engine.state import Progress
from lm.errors import ConfigError
from lm.measures import nonmonotonic


def require_end(train: TrainConfig) -> None:
    """Raise ConfigError if training would never end."""
    if not any((train.max_steps, train.max_epochs, train.max_minutes, train.patience, train.stop_trigger)):
        limits = "train.max_steps, train.max_epochs, train.max_minutes, train.patience or train.stop_trigger"
        raise ConfigError(f"the config has no limit, so training would never end; set {limits}")


def notes_on_max_steps(train: TrainConfig, optim: OptimConfig) -> Iterator[str]:
    """Notes on updates of the schedule and the average that ``train.max_steps`` leaves out."""
    needed = [("warmup_steps", optim.warmup_steps, "the rate does not rise to optim.lr")]
    if optim.schedule in ("cosine", "one_cycle"):
        needed.append(("decay_steps", optim.decay_steps, "the rate does not fall to its lowest"))
    if optim.average != "none" and not (optim.average_trigger or optim.average_patience):
        needed.append(("average_start", optim.average_start + 1, "no weights are averaged"))
    for key, updates, effect in needed:
        if 0 < train.max_steps < updates:
            value = getattr(optim, key)
            yield f"optim.{key} = {value}: training ends at train.max_steps = {train.max_steps}, so {effect}"


def limit_reached(train: TrainConfig, progress: Progress, seconds: float) -> str:
    """The limit that a training of ``seconds`` has reached, or ``""``."""
    if train.max_steps and progress.step >= train.max_steps:
        return f"train.max_steps = {train.max_steps} reached"
    if train.max_epochs and progress.epoch >= train.max_epochs:
        return f"train.max_epochs = {train.max_epochs} reached"
    if train.patience and progress.stale >= train.patience:
        times = "1 time" if progress.stale == 1 else f"{progress.stale} times"
        return f"no better validation for {times} (train.patience = {train.patience})"
    if train.stop_trigger and nonmonotonic(progress.history, train.stop_trigger):
        return f"validation is worse than an older best (train.stop_trigger = {train.stop_trigger})"
    if train.max_minutes and seconds >= 60 * train.max_minutes:
        return f"train.max_minutes = {train.max_minutes:g} reached"
    return ""


def goal_of(train: TrainConfig, epoch_length: int, seconds: float) -> Goal:
    """Limits for the progress display. A pass has ``epoch_length`` batches, and ``seconds`` have passed."""
    per_epoch = math.ceil(epoch_length / train.accumulate)
    steps = [limit for limit in (train.max_steps, train.max_epochs * per_epoch) if limit]
    left = max(1.0, 60 * train.max_minutes - seconds) if train.max_minutes else 0.0
    return Goal(min(steps, default=0), left)
