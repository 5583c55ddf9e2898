"""Processes of a command: how they are started, and this one's place among those of ``torchrun``."""

import os
import sys
from pathlib import Path

from lm.errors import ConfigError

WORLD, RANK = "WORLD_SIZE", "RANK"
_NEEDED = (RANK, WORLD, "MASTER_ADDR", "MASTER_PORT")


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line of a module in a new process, which imports nothing from the working folder."""
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment() -> dict[str, str]:
    """The environment of :func:`module_command`: the import path of this process, from any folder."""
    ours, here = str(Path(__file__).resolve().parent.parent), os.getcwd()
    others = (path for path in sys.path if os.path.isabs(path) and path not in (ours, here))
    return os.environ | {"PYTHONPATH": os.pathsep.join([ours, *others])}


def started_by_torchrun() -> bool:
    """True if the environment has the variables of torchrun."""
    return WORLD in os.environ


def several() -> bool:
    """True if this process is one of several."""
    return os.environ.get(WORLD, "1") != "1"


def processes_here() -> int:
    """Number of processes on this machine that share its memory."""
    return whole_number("LOCAL_WORLD_SIZE", "1")


def leads() -> bool:
    """True if this process writes and prints, as rank 0 or the only process."""
    return os.environ.get(RANK, "0") == "0" or not started_by_torchrun()


def rank_prefix() -> str:
    """``rank 3: `` for a process of several, else nothing."""
    rank = os.environ.get(RANK, "")
    return f"rank {rank}: " if several() and rank.isdecimal() else ""


def rank_and_size() -> tuple[int, int]:
    """Rank and number of processes. ConfigError where the environment of torchrun is incomplete."""
    if missing := [name for name in _NEEDED if name not in os.environ]:
        raise ConfigError(
            f"{', '.join(missing)}: not in the environment, which has {WORLD}; start several processes by"
            f" torchrun, or unset {WORLD}"
        )
    return whole_number(RANK), whole_number(WORLD)


def whole_number(name: str, default: str = "") -> int:
    """An environment variable as a whole number from 0 on. ConfigError for other text."""
    text = os.environ.get(name, default)
    if not text.isdecimal():
        raise ConfigError(f"{name} = {text!r}: not a whole number; start several processes by torchrun")
    return int(text)
