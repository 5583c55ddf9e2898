"""Start a command as several processes of this machine, through torchrun's Python API."""

import logging
import os
import signal
import uuid
from collections.abc import Sequence

from lm.ending import again
from lm.errors import ConfigError, Interrupted, WorkerError
from lm.launched import module_command, module_environment, started_by_torchrun
from lm.machine import usable_processors
from lm.stop import SIGNALS

SHUTDOWN_SECONDS = 600  # from a signal to the end of the last process, which may have to save


def launched(package: str, arguments: Sequence[str], processes: int) -> int:
    """Run ``python -m PACKAGE ARGUMENTS`` in several processes; returns the exit code of the first to fail.

    The threads of torch are divided among the processes, unless OMP_NUM_THREADS is set. Raises ConfigError if
    torchrun started this process.
    """
    if started_by_torchrun():
        raise ConfigError("--processes: torchrun has already started several; omit the option")
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.ERROR)  # each process says what it has to
    command = module_command(package, *arguments)
    os.environ |= module_environment()
    threads = max(1, usable_processors() // processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        signals_to_handle=",".join(_handled()),
    )
    if hasattr(config, "shutdown_timeout"):  # of torch 2.13: a validation or a checkpoint may take minutes
        config.shutdown_timeout = SHUTDOWN_SECONDS
    try:
        elastic_launch(config, command[0])(*command[1:])
    except ChildFailedError as error:
        ends = sorted((failure.timestamp, rank, failure.exitcode) for rank, failure in error.failures.items())
        return exit_code([(rank, code) for _, rank, code in ends])
    except SignalException:
        return Interrupted.exit_code
    return 0


def exit_code(ends: Sequence[tuple[int, int]]) -> int:
    """Exit code of the first process that failed by itself, from ranks and codes in the order of their ends.

    torchrun ends the others when one has ended. WorkerError with the rank if a signal killed the first one
    and no other had the time to notice.
    """
    own = [code for _, code in ends if code > 0]
    rank, first = ends[0]
    if first < 0 and set(own) <= {Interrupted.exit_code}:
        name = signal.Signals(-first).name
        raise WorkerError(f"rank {rank} was killed by {name}; {again()}")
    return own[0]


def without_option(arguments: Sequence[str], option: str) -> list[str]:
    """A command line without an option and its value."""
    kept = [argument for argument in arguments if not argument.startswith(f"{option}=")]
    while option in kept:
        place = kept.index(option)
        del kept[place : place + 2]
    return kept


def _handled() -> list[str]:
    """Names of the signals that the launcher passes on; an ignored SIGHUP, as under nohup, stays ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number.name for number in SIGNALS if not (ignored and number is signal.SIGHUP)]
