"""Work of one and of two processes, with one and two threads; the exchange of gradients between two.

Every variant has processes of its own, which wait for a line on their standard input.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.timing import Case, Ceiling, Variant

SCRIPTS = Path(__file__).resolve().parents[1]
PARAMETERS = (2_500_000, 24_000_000, 96_000_000)
PROCESSES, GIGABITS = (8, 64, 512), (10, 100)
ONE, THREADS, TWO = "1 process, 1 thread", "1 process, 2 threads", "2 processes, 1 thread each"
BOTH = "1 process, 1 thread, both shards"  # the run of the two processes
HALF = "1 process, 1 thread, one shard of 2"  # what each of the two processes computes at least
LABELS = {
    "ptb": "update of `ptb_mos`, K = 15, 12 × 70 tokens",
    "switchboard": "update of `switchboard_small_mos`",
    "beam": "beam 10 of 32 contexts",
    "prepare": "`lm prepare` of 30 million tokens",
}


def cases(_: Ceiling) -> list[Case]:
    """Variants of every work. An update of two processes is in two shards; ``lm prepare`` has no threads."""
    updates = [
        Case(
            LABELS[name],
            [
                Variant(ONE, partial(_Peers, (name, "1"), 1, 1)),
                Variant(BOTH, partial(_Peers, (name, "2"), 1, 1)),
                Variant(HALF, partial(_Peers, (f"{name}-shard", "2"), 1, 1)),
                Variant(THREADS, partial(_Peers, (name, "1"), 1, 2)),
                Variant(TWO, partial(_Peers, (name, "2"), 2, 1)),
            ],
            memory=False,
        )
        for name in ("ptb", "switchboard")
    ]
    decoding = [
        Variant(ONE, partial(_Peers, ("beam",), 1, 1)),
        Variant(THREADS, partial(_Peers, ("beam",), 1, 2)),
        Variant(TWO, partial(_Peers, ("beam",), 2, 1)),
    ]
    prepared = [Variant(name, partial(_Peers, ("prepare", str(n)), 1, 1)) for n, name in ((1, ONE), (2, TWO))]
    return [
        *updates,
        Case(LABELS["beam"], decoding, memory=False),
        Case(LABELS["prepare"], prepared, memory=False),
        *(
            Case(
                _millions(parameters),
                [
                    Variant(name, partial(_Peers, ("exchange", str(parameters), str(exact)), 2, 1))
                    for name, exact in (("exact", 1), ("fast", 0))
                ],
                memory=False,
            )
            for parameters in PARAMETERS
        ),
    ]


def _millions(parameters: int) -> str:
    return f"{parameters / 1e6:g} million"


class _Peers:
    """Processes that do a work together at every call, and end with this object."""

    def __init__(self, work: Sequence[str], processes: int, threads: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        paths = os.pathsep.join([str(SCRIPTS), str(SCRIPTS.parent)])
        environment = os.environ | place | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": paths}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.scale_worker", *work],
                env=environment | {"RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            for rank in range(processes)
        ]
        self._wait("ready")

    def __call__(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
        self._wait("done")

    def _wait(self, word: str) -> None:
        for process in self._processes:
            assert process.stdout is not None
            if process.stdout.readline() != f"{word}\n":
                raise RuntimeError(f"{' '.join(map(str, process.args))}: ended, see above")

    def __del__(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            process.wait()


def results(records: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Content of results/scale.json and results/exchange.json. ``about`` is of every entry."""
    found: dict[str, dict[str, float]] = {}
    for record in records:
        if record["subject"] == "scale":
            found.setdefault(record["case"], {})[record["variant"]] = record["seconds"]
    shared = [_entry(about, label, _shared(found[label])) for label in LABELS.values() if label in found]
    exchanged = [
        _entry(about, _millions(parameters), _exchanged(parameters, found[_millions(parameters)]))
        for parameters in PARAMETERS
        if _millions(parameters) in found
    ]
    return {
        "scale": {"about": "One process and two; medians in seconds, in turns.", "entries": shared},
        "exchange": {
            "about": "Exchange of gradients by two processes of one machine, and efficiencies on paper.",
            "entries": exchanged,
        },
    }


def _entry(about: Mapping[str, Any], label: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
    return {"label": label, "config": "scale", **about, "numbers": dict(numbers)}


def _shared(seconds: Mapping[str, float]) -> dict[str, Any]:
    one, two = seconds[ONE], seconds[TWO]
    threads, both, half = (seconds.get(variant) for variant in (THREADS, BOTH, HALF))
    return {
        "one": one,
        "threads": threads,
        "both": both,
        "half": half,
        "two": two,
        "most": half and one / half,
        "over_one": one / two,
        "over_both": both and both / two,
        "over_threads": threads and threads / two,
    }


def _exchanged(parameters: int, seconds: Mapping[str, float]) -> dict[str, Any]:
    """Measured milliseconds, megabytes that each of two processes sends, and percents on paper."""
    numbers: dict[str, Any] = {"megabytes": 4 * parameters / 1e6}
    numbers |= {f"{name}_milliseconds": 1e3 * seconds[name] for name in ("exact", "fast")}
    for processes in PROCESSES:
        numbers[f"computing_{processes}"] = [*_efficiencies(parameters, processes)]
    return numbers


def _efficiencies(parameters: int, processes: int) -> Iterator[float]:
    """Percent of the time in which a process computes, if an update takes it one second without exchange.

    It receives 2 (N − 1) / N vectors of float32. One process a link; only the bandwidth counts.
    """
    vectors = 2 * (processes - 1) / processes
    for gigabits in GIGABITS:
        yield 100 / (1 + 32 * parameters * vectors / (gigabits * 1e9))
