"""Process group of a training or evaluation, and its exchanges.

``torchrun`` starts the processes and passes each its rank in the environment. Values are sent as JSON bytes
and as tensors, never pickled. Only rank 0 reads and writes run folders.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from lm import errors
from lm.disk.storage import JSON
from lm.errors import HighrankError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

T = TypeVar("T")
WORLD, RANK = "WORLD_SIZE", "RANK"  # environment variables of torchrun
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
    """The group of ``torch.distributed``; gloo on the CPU, NCCL on GPUs.

    Every method raises WorkerError, naming the rank, if another process is lost or silent.
    """

    def __init__(self, minutes: float) -> None:
        import torch.distributed as dist

        self.rank, self.size = int(os.environ[RANK]), int(os.environ[WORLD])
        self._dist, self._minutes = dist, minutes
        self._exchanges = 0
        timeout = timedelta(minutes=minutes)
        self._store = _store(self.rank, self.size, timeout)
        dist.init_process_group(
            "gloo", store=self._store, rank=self.rank, world_size=self.size, timeout=timeout
        )

    def close(self) -> None:
        """Leave the group."""
        self._dist.destroy_process_group()

    @contextmanager
    def _exchange(self) -> "Iterator[None]":
        """Count an exchange; if it fails, raise an error that names the missing ranks."""
        self._exchanges += 1
        self._store.set(_BEAT.format(self.rank), str(self._exchanges))
        try:
            yield
        except RuntimeError as error:
            raise self._lost() from error

    def _lost(self) -> WorkerError:
        """Error of an exchange without some ranks, which the lowest remaining rank prints."""
        behind = []
        try:
            for rank in range(self.size):
                key = _BEAT.format(rank)
                if not self._store.check([key]) or int(self._store.get(key)) < self._exchanges:
                    behind.append(rank)
        except RuntimeError:  # the process that held the store is gone
            pass
        who = f"rank {', '.join(map(str, behind))}" if behind else "another rank"
        error = WorkerError(
            f"{who} is lost, or silent for train.exchange_minutes = {self._minutes:g};"
            " run the same command again to resume"
        )
        error.told = self.rank != min(set(range(self.size)) - set(behind))
        return error

    def share(self, work: Callable[[], JSON]) -> Any:
        answer: dict[str, JSON] = {}
        if self.rank == 0:
            try:
                answer = {"value": work()}
            except HighrankError as error:
                answer = {"error": type(error).__name__, "message": str(error)}
        told = self.first(answer)
        if "error" in told:
            raise _again(told, printed=self.rank != 0)
        return told["value"]

    def every(self, work: Callable[[], T]) -> T:
        failure: HighrankError | None = None
        try:
            done = work()
        except HighrankError as error:
            failure = error
        told = self.gather({"error": type(failure).__name__, "message": str(failure)} if failure else {})
        failed = [rank for rank, answer in enumerate(told) if answer]
        if failed:
            raise failure if failure and self.rank == failed[0] else _again(told[failed[0]], printed=True)
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
        texts = (bytes(buffer[: int(size)].tolist()) for buffer, size in zip(buffers, sizes, strict=True))
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


def _again(told: Mapping[str, str], printed: bool) -> HighrankError:
    """Copy of another rank's error; ``printed`` if another rank prints it."""
    kind = getattr(errors, told["error"])
    error: HighrankError = kind.__new__(kind)
    error.args, error.told = (told["message"],), printed
    return error


@contextmanager
def process_group(minutes: float) -> "Iterator[Group]":
    """The group in which torchrun started this process; ``ALONE`` for a single process."""
    if int(os.environ.get(WORLD, "1")) == 1:
        yield ALONE
        return
    group = ProcessGroup(minutes)
    yield group
    group.close()


def started_by_torchrun() -> bool:
    """True if the environment has the variables of torchrun."""
    return WORLD in os.environ


def leads() -> bool:
    """True if this process writes and prints, as rank 0 or the only process."""
    return os.environ.get(RANK, "0") == "0" or not started_by_torchrun()
