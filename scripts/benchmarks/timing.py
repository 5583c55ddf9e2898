"""Honest timing on a noisy machine: variants in turn in one process, medians, floors, memory apart."""

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

Work = Callable[[], object]
ENOUGH = 2.0  # seconds for the speed of one product


class Ceiling(NamedTuple):
    """Peak throughput of the machine's matrix products, in FLOP/s."""

    float32: float
    bfloat16: float
    float64: float

    def seconds(self, flops: float, precision: str = "float32") -> float:
        """The least time of a number of operations."""
        speed: float = getattr(self, precision)
        return flops / speed


@dataclass(frozen=True)
class Variant:
    """One way to do the work. ``prepare`` makes the inputs and returns what is timed."""

    name: str
    prepare: Callable[[], Work]
    floor: float | None = None  # seconds; None where no arithmetic bounds it


@dataclass(frozen=True)
class Case:
    """Variants of the same work; the first is what the others are compared with."""

    name: str
    variants: Sequence[Variant]
    unit: tuple[str, float] | None = None  # what is counted, and how much of it one run does: tokens, 840
    memory: bool = True  # whether the peak of every variant is worth a process of its own
    # What to say of a variant's result beside the first one's, by column; may be left out.
    compare: Callable[[Any, Any], dict[str, float]] | None = None


@dataclass
class Timing:
    """Seconds of every round of a variant."""

    name: str
    floor: float | None = None
    seconds: list[float] = field(default_factory=list)
    result: object = None  # kept where the case compares results

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        lower, _, upper = statistics.quantiles(self.seconds, n=4)
        return (upper - lower) / 2 / self.median


def measure(case: Case, rounds: int) -> list[Timing]:
    """Every variant once to warm up, then in turn, each round in the opposite order of the last."""
    works = [(Timing(variant.name, variant.floor), variant.prepare()) for variant in case.variants]
    for timing, work in works:
        result = work()
        if case.compare:
            timing.result = result
    for number in range(rounds):
        for timing, work in works[:: -1 if number % 2 else 1]:
            start = time.perf_counter()
            work()
            timing.seconds.append(time.perf_counter() - start)
    return [timing for timing, _ in works]


def ceilings(rounds: int = 9) -> Ceiling:
    """The fastest of a square product and of the two shapes that a head of PTB's size has."""
    shapes = [(1024, 1024, 1024), (840, 280, 10_000), (10_000, 840, 280)]
    best = {torch.float32: 0.0, torch.bfloat16: 0.0, torch.float64: 0.0}
    for rows, inner, columns in shapes:
        for dtype in best:
            left, right = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
            out = torch.empty(rows, columns, dtype=dtype)
            seconds = []
            for _ in range(rounds):
                start = time.perf_counter()
                torch.mm(left, right, out=out)
                seconds.append(time.perf_counter() - start)
                if sum(seconds) > ENOUGH:  # bfloat16 where the processor has no units for it
                    break
            best[dtype] = max(best[dtype], 2 * rows * inner * columns / statistics.median(seconds))
    return Ceiling(best[torch.float32], best[torch.bfloat16], best[torch.float64])


def peak_megabytes(work: Work) -> float:
    """Memory that one run needs above what the process holds before it; for a fresh process only.

    The code of libraries that it is the first to use does not count, nor does any other file that it maps.
    """
    code = _status("RssFile")
    return resident_megabytes(work, 1) - (_status("RssFile") - code)


def resident_megabytes(work: Work, calls: int = 2) -> float:
    """Growth of the resident set during some calls, with the code of libraries; for a fresh process only."""
    before = _status("VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the high-water mark
        for _ in range(calls):
            work()
        return _status("VmHWM") - before
    except OSError:
        for _ in range(calls):
            work()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before


def _status(key: str) -> float:
    """A line of the process's status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024
