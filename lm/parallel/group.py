"""Process group of a training or evaluation, and its exchanges.

``torchrun`` starts the processes and passes each its rank in the environment. Values are sent as JSON bytes
and as tensors, never pickled. Only rank 0 reads and writes run folders.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from lm import errors
from lm.disk.storage import JSON
from lm.ending import INTERRUPTED, shortage
from lm.errors import HighrankError, Interrupted, WorkerError
from lm.launched import rank_and_size, several

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

T = TypeVar("T")
EVALUATION_MINUTES = 60.0  # that processes wait for the slowest slice of an evaluation
GRACE = 2.0  # seconds in which a rank on its way to an exchange arrives
_BEAT = "exchange/{}"  # key of the store under which a rank counts its exchanges
_FAILURE = "failure"  # key of the store under which the first rank to fail tells why


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

    def require_equal(self, facts: Mapping[str, object]) -> None:
        """Raise WorkerError, naming rank and fact, if a rank differs from rank 0."""
        every = self.gather({name: str(fact) for name, fact in facts.items()})
        for rank, theirs in enumerate(every):
            for name in (name for name in facts if theirs.get(name) != every[0].get(name)):
                raise WorkerError(
                    f"rank {rank}: its {name} differs from rank 0's; start all ranks with the same inputs"
                )

    def gather_rows(self, tensor: "Tensor") -> list["Tensor"]:
        """The tensors of all ranks, which may differ in the length of their first dimension."""
        return [tensor]

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

    def __init__(self, minutes: float, key: str = "") -> None:
        import torch.distributed as dist

        self.rank, self.size = rank_and_size()
        self._dist = dist
        self._limit = f"{key} = {minutes:g}" if key else f"{minutes:g} minutes"
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

    def fail(self, error: BaseException) -> None:
        """Tell the others why this rank ends. Of several, only the first prints its error."""
        facts = json.dumps(_facts(error, self.rank))
        with suppress(RuntimeError):  # the store went with the process that held it
            error.told = self._store.compare_set(_FAILURE, "", facts).decode() != facts  # type: ignore[attr-defined]

    def _lost(self) -> HighrankError:
        """The error of an exchange in which others did not take part: theirs, or that they are lost."""
        behind = list(range(self.size))
        until = time.monotonic() + GRACE
        try:
            while behind and time.monotonic() < until:  # others may be on their way
                if self._store.check([_FAILURE]):
                    return _again(json.loads(self._store.get(_FAILURE)))
                behind = [rank for rank in behind if self._exchanges_of(rank) < self._exchanges]
                time.sleep(GRACE / 20)
        except RuntimeError:  # the store went with the process that held it
            behind = [0]
        names = ", ".join(map(str, behind))
        who = f"ranks {names} are" if len(behind) > 1 else f"rank {names} is" if behind else "another rank is"
        return WorkerError(
            f"{who} lost, or silent for {self._limit}; run the same command again to start over or to resume"
        )

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
            raise failure
        if failed:
            raise _again(told[failed[0]])
        return done

    def gather(self, value: JSON) -> list[Any]:
        import torch

        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(text.numpy().tobytes()) for text in self.gather_rows(data)]

    def gather_rows(self, tensor: "Tensor") -> list["Tensor"]:
        import torch

        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self._exchange():
            self._dist.all_gather(lengths, torch.tensor([len(tensor)]))
            longest = max(int(length) for length in lengths)
            padded = torch.zeros(longest, *tensor.shape[1:], dtype=tensor.dtype)
            padded[: len(tensor)] = tensor
            buffers = [torch.empty_like(padded) for _ in range(self.size)]
            self._dist.all_gather(buffers, padded)
        return [buffer[: int(length)] for buffer, length in zip(buffers, lengths, strict=True)]

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


def _facts(error: BaseException, rank: int) -> dict[str, JSON]:
    """An error as other ranks are told of it."""
    known = error if isinstance(error, HighrankError) else shortage(error)
    if isinstance(error, KeyboardInterrupt):
        known = Interrupted(INTERRUPTED)
    kind, message = (type(known).__name__, str(known)) if known else ("WorkerError", "has failed")
    return {"rank": rank, "error": kind, "message": message}


def _again(told: Mapping[str, Any]) -> HighrankError:
    """An error of another rank, which prints it."""
    kind = getattr(errors, told["error"])
    error: HighrankError = kind.__new__(kind)
    error.args, error.told = (told["message"],), True
    return error


@contextmanager
def process_group(minutes: float = EVALUATION_MINUTES, key: str = "") -> "Iterator[Group]":
    """The group in which torchrun started this process; ``ALONE`` for a single process.

    A process that is silent for ``minutes`` ends the others; ``key`` is the key of the config that sets them.
    """
    if not several():
        yield ALONE
        return
    group = ProcessGroup(minutes, key)
    try:
        yield group
    except BaseException as error:
        if not getattr(error, "told", False):
            group.fail(error)
        raise
    group.close()
