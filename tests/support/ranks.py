"""Ranks of a group as threads of one process, for tests of work that draws no random numbers."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from lm.parallel.group import Group, ProcessGroup


class Threads(ProcessGroup):
    """Ranks that are threads, and exchange through a list."""

    def __init__(
        self, rank: int, board: list[Any], barrier: threading.Barrier, alarm: threading.Event
    ) -> None:
        self.rank, self.size = rank, len(board)
        self._values, self._barrier, self._alarm = board, barrier, alarm

    def gather(self, value: Any) -> list[Any]:
        self._values[self.rank] = value
        self._barrier.wait(10)
        values = list(self._values)
        self._barrier.wait(10)
        return values

    def gather_rows(self, tensor: Tensor) -> list[Tensor]:
        every = [other.clone() for other in self.gather(tensor)]
        self._barrier.wait(10)  # before any rank changes its tensor
        return every

    def send_and_receive(
        self, sent: Sequence[tuple[int, Tensor]], received: Sequence[tuple[int, Tensor]]
    ) -> None:
        waiting = [[tensor for to, tensor in theirs if to == self.rank] for theirs in self.gather(sent)]
        for rank, tensor in received:
            tensor.copy_(waiting[rank].pop(0))
        assert not any(waiting)
        self._barrier.wait(10)  # before any rank changes its tensors

    def sum_(self, tensor: Tensor) -> None:
        """From the last rank to the first, as the order of a real sum is not that of the ranks."""
        for number, other in enumerate(reversed(self.gather_rows(tensor))):
            tensor.copy_(other) if number == 0 else tensor.add_(other)

    def alert(self) -> None:
        self._alarm.set()

    def alerted(self) -> bool:
        return self._alarm.is_set()


def together(size: int, work: Callable[[Group], object]) -> list[object]:
    """Results of all ranks, or what they raised."""
    values, barrier, results = [None] * size, threading.Barrier(size), [object()] * size
    alarm = threading.Event()

    def run(rank: int) -> None:
        try:
            results[rank] = work(Threads(rank, values, barrier, alarm))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results
