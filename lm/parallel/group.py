"""Process group of a training or evaluation, and its exchanges.

``torchrun`` starts the processes and passes each its rank in the environment. Values are sent as JSON bytes
and as tensors, never pickled. Only rank 0 reads and writes run folders.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, TypeVar

from lm import errors
from lm.disk.jsonfile import JSON
from lm.ending import again, shortage
from lm.errors import HighrankError, Interrupted, WorkerError
from lm.launched import rank_and_size, several
from lm.parallel.board import Board, hosted
from lm.stop import ignore_signals

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
EVALUATION_MINUTES = 60.0  # that processes wait for the slowest slice of an evaluation
GRACE = 2.0  # seconds in which a rank on its way to an exchange arrives
LOOK = 0.05  # seconds between two looks for a rank on its way
NEARLY = 0.9  # share of the time to wait after which a rank that ends others was waiting for as long
ANNOUNCED = timedelta(seconds=5)  # that a failing rank waits for the store


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
            for name in (name for name in every[0] | theirs if theirs.get(name) != every[0].get(name)):
                raise WorkerError(
                    f"rank {rank}: its {name} differs from rank 0's; start all ranks with the same inputs"
                )

    def gather_rows(self, tensor: "Tensor") -> list["Tensor"]:
        """The tensors of all ranks, which may differ in the length of their first dimension."""
        return [tensor]

    def broadcast(self, tensors: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
        """Rank 0's named tensors, on every rank."""
        return dict(tensors)

    def send_and_receive(
        self, sent: Sequence[tuple[int, "Tensor"]], received: Sequence[tuple[int, "Tensor"]]
    ) -> None:
        """Send contiguous tensors to other ranks, and receive theirs; each rank's in the order of sending."""

    def sum_(self, tensor: "Tensor") -> None:
        """Sum a tensor over all ranks in place; the order of the sum depends on their number."""

    def alert(self) -> None:
        """Let :meth:`alerted` be true from now on. No exchange: a rank may call it alone, at any time."""

    def alerted(self) -> bool:
        """True if a rank has called :meth:`alert`, within about a second."""
        return False


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
        self._exchanges, self._since = 0, time.monotonic()
        self._timeout = timeout = timedelta(minutes=minutes)
        try:
            self._board = Board(self.rank, self.size, timeout)
            self._assemble()
            dist.init_process_group(
                "gloo", store=self._board.store, rank=self.rank, world_size=self.size, timeout=timeout
            )
        except RuntimeError as error:
            raise WorkerError(
                f"rank {self.rank} does not find the others: {str(error).splitlines()[0]};"
                " check that all were started with the same address and port"
            ) from error

    def _assemble(self) -> None:
        """Wait until every rank has come; a signal, or the failure of another rank, ends it at once."""
        self._begin()
        while not self._board.all_here():
            if self._board.failure() or self._waited() > 1:
                raise self._lost()
            time.sleep(LOOK)

    def _begin(self) -> None:
        """Count an exchange, and its time from now on."""
        self._exchanges, self._since = self._exchanges + 1, time.monotonic()
        self._board.beat(self._exchanges)

    def _waited(self) -> float:
        """Share of the time that this rank waits for others in an exchange."""
        return (time.monotonic() - self._since) / self._timeout.total_seconds()

    def close(self) -> None:
        """Leave the group."""
        self._dist.destroy_process_group()

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """Count an exchange; if it fails, raise an error that names the missing ranks."""
        try:
            self._begin()
            yield
        except RuntimeError as error:
            clear_frames(error.__traceback__)  # they hold the group, which is closed
            raise shortage(error) or self._lost() from error

    def fail(self, error: BaseException) -> None:
        """Tell the others why this rank ends. Of several, only the first prints its error."""
        with suppress(RuntimeError):  # the store went with the process that held it
            _report(self._board, error, self.rank)

    def _lost(self) -> HighrankError:
        """The error of an exchange in which others did not take part: theirs, or that they are lost."""
        ignore_signals()
        ended = f"silent for longer than {self._limit}" if self._waited() > NEARLY else "lost"
        behind = list(range(self.size))
        until = time.monotonic() + GRACE
        try:
            self._board.beat(self._exchanges + 1)  # as every rank does that goes on
            if self._dist.is_initialized():
                self._dist.destroy_process_group()  # ends the exchange of those that wait for this rank
            while behind and time.monotonic() < until:  # others may be on their way
                if failure := self._board.failure():
                    return _again(failure)
                behind = self._board.behind(self._exchanges) or self._board.behind(self._exchanges + 1)
                time.sleep(LOOK)
        except RuntimeError:  # the store went with the process that held it
            behind = [0]
        names = ", ".join(map(str, behind))
        who = f"ranks {names} are" if len(behind) > 1 else f"rank {names} is" if behind else "another rank is"
        return WorkerError(f"{who} {ended}; {again()}")

    def share(self, work: Callable[[], JSON]) -> Any:
        answer: dict[str, JSON] = {}
        if self.rank == 0:
            try:
                answer = {"value": work()}
            except Exception as error:
                self.first(_facts(error, 0))
                raise
        first = self.first(answer)
        if "error" in first:
            raise _again(first)
        return first["value"]

    def every(self, work: Callable[[], T]) -> T:
        failure: Exception | None = None
        try:
            done = work()
        except Exception as error:
            failure = error
        answers = self.gather(_facts(failure, self.rank) if failure else {})
        failed = [rank for rank, answer in enumerate(answers) if answer]
        if failed and failure and self.rank == failed[0]:
            raise failure
        if failed:
            raise _again(answers[failed[0]])
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

    def send_and_receive(
        self, sent: Sequence[tuple[int, "Tensor"]], received: Sequence[tuple[int, "Tensor"]]
    ) -> None:
        dist = self._dist
        sends = [dist.P2POp(dist.isend, tensor, rank) for rank, tensor in sent]
        receipts = [dist.P2POp(dist.irecv, tensor, rank) for rank, tensor in received]
        with self._exchange():
            for work in dist.batch_isend_irecv(sends + receipts):
                work.wait()

    def sum_(self, tensor: "Tensor") -> None:
        with self._exchange():
            self._dist.all_reduce(tensor)

    def alert(self) -> None:
        self._board.alert()

    def alerted(self) -> bool:
        return self._board.alerted()


def announce(error: BaseException) -> None:
    """Tell the other ranks that this one ends by an error before it is in a group, or after.

    Of several, only the first prints its error. No effect without torchrun, or if the error is reported.
    """
    if several() and hosted() and "reported" not in vars(error):
        with suppress(RuntimeError, HighrankError):
            rank, size = rank_and_size()
            _report(Board(rank, size, ANNOUNCED), error, rank)


def _report(board: Board, error: BaseException, rank: int) -> None:
    ignore_signals()
    error.reported = not board.report_failure(_facts(error, rank))  # type: ignore[attr-defined]


def _facts(error: BaseException, rank: int) -> dict[str, JSON]:
    """Facts of an error for the other ranks."""
    known = error if isinstance(error, HighrankError) else shortage(error)
    if isinstance(error, KeyboardInterrupt):
        known = Interrupted(f"interrupted; {again()}")
    kind, message = (type(known).__name__, str(known)) if known else ("WorkerError", "has failed")
    return {"rank": rank, "error": kind, "message": message}


def _again(facts: Mapping[str, Any]) -> HighrankError:
    """An error of another rank, which prints it."""
    error: HighrankError = getattr(errors, facts["error"])(facts["message"])
    error.reported = True
    return error


@contextmanager
def process_group(minutes: float = EVALUATION_MINUTES, key: str = "") -> Iterator[Group]:
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
        ignore_signals()  # of torchrun, which ends the others when one has ended
        if not getattr(error, "reported", False):
            group.fail(error)
        raise
    group.close()
