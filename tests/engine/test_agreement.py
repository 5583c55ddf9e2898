"""Decisions of several ranks: all take the same one, from the signals and the clock of any."""

import signal
from collections.abc import Callable, Iterator

import pytest

from lm.engine.agreement import Agreement, Clock, Standing
from lm.errors import Interrupted
from lm.parallel.group import ALONE, Group
from lm.stop import StopFlag
from tests.support.ranks import together


def agreement(group: Group, signalled: int = -1) -> Agreement:
    stop, clock = StopFlag(), Clock(minutes=0.0)
    clock.resume(100.0 * (1 + group.rank))
    if group.rank == signalled:
        stop._receive(signal.SIGTERM, None)
    return Agreement(group, stop, clock)


def on_all(decide: Callable[[Agreement, int], object], signalled: int = -1) -> list[object]:
    """The decisions of three ranks, of which one has received a signal."""
    return together(3, lambda group: decide(agreement(group, signalled), group.rank))


def test_one_rank_that_disagrees_is_enough() -> None:
    assert on_all(lambda one, rank: one.unanimous(rank != 2)) == [False] * 3
    assert on_all(lambda one, rank: one.unanimous(True)) == [True] * 3
    assert on_all(lambda one, rank: one.by_first(lambda: f"as rank {rank} says")) == ["as rank 0 says"] * 3


def test_all_see_the_signal_of_one_and_the_clock_of_rank_0() -> None:
    def met(one: Agreement, rank: int) -> Standing:
        assert one.outcome == Standing(stop=False, seconds=0.0, old=False), "nothing before an exchange"
        one.meet()
        return one.outcome

    first, *others = on_all(met, signalled=1)
    assert isinstance(first, Standing)
    assert others == [first] * 2
    assert first.stop
    assert 100.0 <= first.seconds < 200.0


def slices(count: int) -> Iterator[tuple[float, int]]:
    for _ in range(count):
        yield 0.5, 3


@pytest.mark.parametrize("size", [1, 3])
def test_a_validation_is_summed_unless_a_signal_comes_to_one_rank(size: int) -> None:
    def scored(group: Group) -> object:
        return agreement(group).scored(slices(4))

    def interrupted(group: Group) -> object:
        endless = iter(lambda: (0.5, 3), None)
        with pytest.raises(Interrupted):
            agreement(group, signalled=size - 1).scored(endless)
        return "interrupted"

    assert (together(size, scored) if size > 1 else [scored(ALONE)]) == [(2.0, 12)] * size
    assert (together(size, interrupted) if size > 1 else [interrupted(ALONE)]) == ["interrupted"] * size
