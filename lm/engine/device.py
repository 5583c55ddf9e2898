"""Device and floating-point mode of a training or evaluation."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lm.engine.config import TrainConfig
from lm.errors import ConfigError
from lm.machine import visible_processors


def configure_device(train: TrainConfig) -> torch.device:
    """The device to train on, set up for reproducible results; raises ConfigError if CUDA is missing."""
    if train.threads:
        torch.set_num_threads(train.threads)
    device = chosen_device(train)
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ConfigError('train.device = "cuda", but torch sees no CUDA device; use "auto" or "cpu"')
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is not reproducible
    torch.use_deterministic_algorithms(True, warn_only=True)
    # weights with dropout are new in every window, so they cannot lie in one piece of memory
    warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
    return device


def chosen_device(train: TrainConfig) -> torch.device:
    """The device that a config asks for, which this machine may not have."""
    if train.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(train.device)


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Count denormal numbers as 0 in this thread and in threads that it starts, on a CPU that can do so.

    Gates that are nearly shut make such numbers, below 1.2e-38 in float32. Many processors multiply them a
    hundred times more slowly than others.
    """
    before = sys.float_info.min / 2 == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def load_note() -> str:
    """A hint on ``train.threads`` if they exceed the processors, or other work takes a processor or more."""
    threads, processors = torch.get_num_threads(), visible_processors()
    if threads > processors:
        return (
            f"note: {threads} threads on {processors} processors wait for each other; in a new run, set"
            f" train.threads to {processors} or less"
        )
    try:
        load = os.getloadavg()[0]
    except OSError:  # unknown on this system
        return ""
    if threads == 1 or load < processors + 1:
        return ""
    return (
        f"note: the load is {load:.1f} on {processors} processors, where threads wait for each other;"
        " if updates are slow, try --set train.threads=1 in a new run"
    )


def device_here(train: TrainConfig) -> torch.device:
    """The device to use a trained model on: that of its run, or the CPU if there is no CUDA.

    Torch chooses the number of threads, because ``train.threads`` is meant for the training only.
    """
    here = {} if torch.cuda.is_available() else {"device": "cpu"}
    return configure_device(train.model_copy(update={"threads": 0, **here}))
