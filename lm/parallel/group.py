"""Process group of a training or evaluation, and its exchanges.

``torchrun`` starts the processes and passes each its rank in the environment. Values are sent as JSON bytes
and as tensors, never pickled. Only rank 0 reads and writes run folders.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from lm import errors
from lm.disk.storage import JSON
from lm.ending import shortage
from lm.errors import ConfigError, HighrankError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

T = TypeVar("T")
WORLD, RANK = "WORLD_SIZE", "RANK"  # environment variables of torchrun
GRACE = 2.0  # seconds in which a rank on its way to an exchange arrives
_BEAT = "exchange/{}"  # key of the store under which a rank counts its exchanges


class Group:
    """Processes that compute together. The base class is a group of one process, without exchanges."""

    rank, size = 0, 1

    def share(self, work: Callable[[], JSON]) -> Any:
        """Run ``work`` on rank 0; every rank gets its result or its HighrankError."""
        return work()

    def every(self, work: Callable[[], T]) -> T:
        """Run ``work`` on every rank; a HighrankError of one is raised on all."""
        return work()

    def first(self, value: JSON) -> Any:
        """Rank 0's value, on every rank."""
        return self.gather(value if self.rank == 0 else None)[0]

    def gather(self, value: JSON) -> list[Any]:
        """The values of all ranks, in the order of ranks."""
        return [value]

    def gather_tensors(self, tensors: Sequence["Tensor"], counts: Sequence[int]) -> list["Tensor"]:
        """The tensors of all ranks, all of one shape; rank r sends ``counts[r]`` of them."""
        return list(tensors)

    def broadcast(self, tensors: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
        """Rank 0's named tensors, on every rank."""
        return dict(tensors)

    def sum_(self, tensor: "Tensor") -> None:
        """Sum a tensor over all ranks in place; the order of the sum depends on their number."""


ALONE = Group()


class ProcessGroup(Group):
    """The group of ``torch.distributed``, by gloo on the CPU.

    Every method raises WorkerError, naming the rank, if another process is lost or silent.
    """

    def __init__(self, minutes: float) -> None:
        import torch.distributed as dist

        self.rank, self.size = _place()
        self._dist, self._minutes = dist, minutes
        self._exchanges = 0
        timeout = timedelta(minutes=minutes)
        try:
            self._store = _store(self.rank, self.size, timeout)
            dist.init_process_group(
                "gloo", store=self._store, rank=self.rank, world_size=self.size, timeout=timeout
            )
        except RuntimeError as error:
            raise WorkerError(
                f"the processes do not find each other: {str(error).splitlines()[0]}"
            ) from error

    def close(self) -> None:
        """Leave the group."""
        self._dist.destroy_process_group()

    @contextmanager
    def _exchange(self) -> "Iterator[None]":
        """Count an exchange; if it fails, raise an error that names the missing ranks."""
        self._exchanges += 1
        try:
            self._store.set(_BEAT.format(self.rank), str(self._exchanges))
            yield
        except RuntimeError as error:
            raise self._lost() from error

    def _lost(self) -> WorkerError:
        """The error of an exchange in which others did not take part; the lowest rank left prints it."""
        behind = list(range(self.size))
        until = time.monotonic() + GRACE
        try:
            while behind and time.monotonic() < until:  # others may be on their way
                behind = [rank for rank in behind if self._exchanges_of(rank) < self._exchanges]
                time.sleep(GRACE / 20)
        except RuntimeError:  # the store went with the process that held it
            behind = []
        names = ", ".join(map(str, behind))
        who = f"ranks {names} are" if len(behind) > 1 else f"rank {names} is" if behind else "another rank is"
        error = WorkerError(
            f"{who} lost, or silent for train.exchange_minutes = {self._minutes:g};"
            " run the same command again to resume"
        )
        error.own, error.told = True, self.rank != min(set(range(self.size)) - set(behind))
        return error

    def _exchanges_of(self, rank: int) -> int:
        """The number of exchanges that a rank has come to."""
        key = _BEAT.format(rank)
        return int(self._store.get(key)) if self._store.check([key]) else 0

    def share(self, work: Callable[[], JSON]) -> Any:
        answer: dict[str, JSON] = {}
        if self.rank == 0:
            try:
                answer = {"value": work()}
            except Exception as error:
                self.first(_facts(error, 0))
                raise
        told = self.first(answer)
        if "error" in told:
            raise _again(told)
        return told["value"]

    def every(self, work: Callable[[], T]) -> T:
        failure: Exception | None = None
        try:
            done = work()
        except Exception as error:
            failure = error
        told = self.gather(_facts(failure, self.rank) if failure else {})
        failed = [rank for rank, answer in enumerate(told) if answer]
        if failed and failure and self.rank == failed[0]:
            if isinstance(failure, HighrankError):
                failure.own = True
            raise failure
        if failed:
            raise _again(told[failed[0]])
        return done

    def gather(self, value: JSON) -> list[Any]:
        import torch

        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self._exchange():
            self._dist.all_gather(sizes, torch.tensor([len(data)]))
            longest = max(int(size) for size in sizes)
            padded = torch.nn.functional.pad(data, (0, longest - len(data)))
            buffers = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
            self._dist.all_gather(buffers, padded)
        texts = (buffer[: int(size)].numpy().tobytes() for buffer, size in zip(buffers, sizes, strict=True))
        return [json.loads(text) for text in texts]

    def gather_tensors(self, tensors: Sequence["Tensor"], counts: Sequence[int]) -> list["Tensor"]:
        import torch

        gathered: list[Tensor] = []
        for place in range(max(counts)):
            mine = tensors[place] if place < len(tensors) else torch.zeros_like(tensors[0])
            every = [torch.empty_like(mine) for _ in range(self.size)]
            with self._exchange():
                self._dist.all_gather(every, mine.contiguous())
            gathered += every
        order = [place * self.size + rank for rank, count in enumerate(counts) for place in range(count)]
        return [gathered[number] for number in order]

    def broadcast(self, tensors: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
        import torch

        shapes: JSON = [[name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
                  for name, tensor in tensors.items()]  # fmt: skip
        received = {}
        for name, dtype, shape in self.first(shapes):
            tensor = (
                tensors[name].contiguous()
                if self.rank == 0
                else torch.empty(shape, dtype=getattr(torch, dtype))
            )
            with self._exchange():
                self._dist.broadcast(tensor, 0)
            received[name] = tensor
        return received

    def sum_(self, tensor: "Tensor") -> None:
        with self._exchange():
            self._dist.all_reduce(tensor)


def _store(rank: int, size: int, timeout: timedelta) -> Any:
    """Key-value store of a group; after a restart by torchrun, the group uses other keys."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port, size, is_master=rank == 0 and not hosted, timeout=timeout)
    return PrefixStore(f"highrank/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _facts(error: Exception, rank: int) -> dict[str, str]:
    """An error as other ranks are told of it."""
    known = error if isinstance(error, HighrankError) else shortage(error)
    if known is None:
        return {"error": "WorkerError", "message": f"rank {rank} has failed"}
    return {"error": type(known).__name__, "message": str(known)}


def _again(told: Mapping[str, str]) -> HighrankError:
    """An error of another rank, which prints it."""
    kind = getattr(errors, told["error"])
    error: HighrankError = kind.__new__(kind)
    error.args, error.told = (told["message"],), True
    return error


def _place() -> tuple[int, int]:
    """Rank and number of processes. ConfigError where the environment of torchrun is incomplete."""
    missing = [name for name in (RANK, WORLD, "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)}: not in the environment, which has {WORLD}; start several processes by"
            f" torchrun, or unset {WORLD}"
        )
    return int(os.environ[RANK]), int(os.environ[WORLD])


@contextmanager
def process_group(minutes: float) -> "Iterator[Group]":
    """The group in which torchrun started this process; ``ALONE`` for a single process."""
    if int(os.environ.get(WORLD, "1")) == 1:
        yield ALONE
        return
    group = ProcessGroup(minutes)
    try:
        yield group
    except HighrankError as error:
        error.told = error.told or (group.rank > 0 and not error.own)  # rank 0 prints what all raise
        raise
    group.close()


def started_by_torchrun() -> bool:
    """True if the environment has the variables of torchrun."""
    return WORLD in os.environ


def processes_here() -> int:
    """Number of processes on this machine that share its memory."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def leads() -> bool:
    """True if this process writes and prints, as rank 0 or the only process."""
    return os.environ.get(RANK, "0") == "0" or not started_by_torchrun()
