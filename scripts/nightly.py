"""Run the fault matrix: every row as often as a night demands, on two processors, in at most 80 minutes.

    python scripts/nightly.py                    all rows; finished cases are kept, a second call goes on
    python scripts/nightly.py --rows A1 E1 --minutes 5
    python scripts/nightly.py --rows A1 --times 4    before a release: 2,000 kills
    python scripts/nightly.py --case E1 17       one case in this process, with the traceback of its failure
    python scripts/nightly.py --again            the same after a mend: what had failed is run again
    python scripts/nightly.py --markdown         the table of what has been run, without running anything

A case is a function of (row, seed, index). Each result is a line of FOLDER/results.jsonl; remove the folder
to begin anew. Exit code 1 where any case failed or a row came to too few faults, else 75 where a row is not
finished. Rows are in tests/matrix/table.py, their promises in docs/reliability.md.
"""

import argparse
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from command_line import Options  # noqa: E402

from lm.disk.storage import write_atomic  # noqa: E402
from lm.errors import Interrupted  # noqa: E402
from tests.matrix.row import Case, Row, dice  # noqa: E402
from tests.matrix.table import ROWS  # noqa: E402
from tests.support.crash_process import ENVIRONMENT  # noqa: E402

HUNG = 2400.0  # seconds without a word from a worker
LONGEST = 1800  # seconds that a case may take
BY_NAME = {row.name: row for row in ROWS}


@dataclass
class Tally:
    """Past runs of a row."""

    row: Row
    demanded: int
    cases: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)  # indices that are done or being worked on

    @property
    def lacking(self) -> bool:
        """True if a row that can be run has come to fewer cases than demanded."""
        return self.row.lab is not None and self.cases < self.demanded

    @property
    def open(self) -> bool:
        """True if a row is left to run."""
        return self.lacking and len(self.seen) < self.most

    @property
    def short(self) -> bool:
        """True if all indices together came to too few faults, and no limit of the row explains it."""
        return self.lacking and not self.open and not self.row.limit

    @property
    def most(self) -> int:
        """The indices that there are: some cases come to no fault, and others to several."""
        return 3 * self.demanded

    def add(self, result: dict[str, Any]) -> None:
        self.seen.add(result["index"])
        self.cases += result["cases"]
        self.seconds += result["seconds"]
        if result["failure"]:
            self.failures.append(f"{self.row.name} {result['index']}: {result['failure']}")

    def take(self) -> list[int]:
        """The next indices to work on."""
        free = (index for index in range(self.most) if index not in self.seen)
        taken = [index for index, _ in zip(free, range(self.row.chunk), strict=False)]
        self.seen.update(taken)
        return taken


def tallies(results: Path, seed: int, times: int) -> dict[str, Tally]:
    """Tallies by name of row: the cases that ``times`` nights demand, and the kept results of a seed."""
    found = {row.name: Tally(row, times * row.night) for row in ROWS}
    for result in kept_results(results):
        if result["seed"] == seed and result["row"] in found:
            found[result["row"]].add(result)
    return found


def kept_results(results: Path) -> list[dict[str, Any]]:
    """The results in a file except an unfinished last line; [] without a file."""
    if not results.exists():
        return []
    *lines, _ = results.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines]


def cut_torn_line(results: Path) -> None:
    """Remove the unfinished last line that a kill has left, before others are appended."""
    if results.exists():
        with results.open("r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


def forget_failures(results: Path, rows: Sequence[str], seed: int) -> None:
    """Remove the failures of these rows and this seed from the results file, so that they are run again."""
    kept = [
        result
        for result in kept_results(results)
        if not (result["failure"] and result["row"] in rows and result["seed"] == seed)
    ]
    write_atomic(results, "".join(f"{json.dumps(result)}\n" for result in kept).encode())


def run_case(case: Case, row: str, seed: int, index: int) -> dict[str, Any]:
    """One case: how many faults it was, how long it took, and what failed."""
    started, cases, failure = time.monotonic(), 0, ""
    signal.alarm(LONGEST)  # raises where it waits for ever
    try:
        cases = case(dice(row, seed, index), index)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        cases = 1
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(f"{type(error).__name__}: {error}".split())
        failure = f"{text[:600]} ({Path(place.filename).name}:{place.lineno})"
    finally:
        signal.alarm(0)
    seconds = round(time.monotonic() - started, 3)
    return {"row": row, "seed": seed, "index": index, "cases": cases, "seconds": seconds, "failure": failure}


def took_too_long(number: int, frame: object) -> None:
    raise TimeoutError(f"more than {LONGEST} s")


def work() -> None:
    """In a worker: for each line of JSON (row, seed, indices) on stdin, a line for each case on stdout."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a case prints is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # typed in a terminal; the parent ends this process
    signal.signal(signal.SIGALRM, took_too_long)
    labs: dict[str, Case] = {}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="highrank-nightly-")))
        for line in sys.stdin:
            job = json.loads(line)
            name, started = job["row"], time.monotonic()
            if name not in labs:
                (scratch / name).mkdir()
                lab = BY_NAME[name].lab
                assert lab is not None
                labs[name] = stack.enter_context(lab(scratch / name))
            preparation = time.monotonic() - started
            for index in job["indices"]:
                result = run_case(labs[name], name, job["seed"], index)
                result["seconds"] = round(result["seconds"] + preparation, 3)
                preparation = 0.0
                print(json.dumps(result), file=answers, flush=True)


def lines_of(pipe: int) -> Iterator[bytes]:
    """Lines from a pipe until it is closed or silent for ``HUNG`` seconds.

    Not by a file's ``readline``: what that has read ahead, a selector does not see.
    """
    begun = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(HUNG) and (data := os.read(pipe, 1 << 16)):
            *lines, begun = (begun + data).split(b"\n")
            yield from lines


class Night:
    """Two workers, and what they are given to do."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.seed: int = options.seed
        self.rows: list[str] = options.rows
        self.until = time.monotonic() + 60 * options.minutes
        self.folder: Path = options.dir
        self.folder.mkdir(parents=True, exist_ok=True)
        results = self.folder / "results.jsonl"
        cut_torn_line(results)
        if options.again:
            forget_failures(results, self.rows, self.seed)
        self.found = tallies(results, self.seed, options.times)
        self.lock = threading.Lock()
        self.stopped = False

    def jobs(self) -> Iterator[tuple[str, list[int]]]:
        """Run the row with the least time so far next, until all are done or the time is over."""
        while not self.stopped and time.monotonic() < self.until:
            with self.lock:
                waiting = [self.found[name] for name in self.rows if self.found[name].open]
                if not waiting:
                    return
                tally = min(waiting, key=lambda tally: tally.seconds)
                indices = tally.take()
            yield tally.row.name, indices

    def attend(self) -> None:
        """One worker process after the other, until there are no jobs."""
        process: subprocess.Popen[str] | None = None
        try:
            for name, indices in self.jobs():
                if process is None or process.poll() is not None:
                    process = self.start()
                self.send(process, name, indices)
        finally:
            if process is not None:
                with process:
                    pass  # closes its pipes, which ends it, and waits

    def start(self) -> "subprocess.Popen[str]":
        log = (self.folder / "workers.log").open("a", encoding="utf-8")
        command = [sys.executable, __file__, "--work"]
        with log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=os.environ | ENVIRONMENT,
            )

    def send(self, process: "subprocess.Popen[str]", name: str, indices: list[int]) -> None:
        """Have cases run; a worker that ends, or says nothing for long, is itself a failure of a case."""
        assert process.stdin is not None
        assert process.stdout is not None
        left = list(indices)
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps({"row": name, "seed": self.seed, "indices": indices}) + "\n")
            process.stdin.flush()
        for line in lines_of(process.stdout.fileno()):
            result = json.loads(line)
            left.remove(result["index"])
            self.keep(result)
            if not left:
                return
        process.kill()
        lost = {"row": name, "seed": self.seed, "index": left[0], "cases": 1, "seconds": 0.0}
        self.keep(lost | {"failure": f"the worker ended or hung (exit {process.wait()})"})

    def keep(self, result: dict[str, Any]) -> None:
        """Add a result to the file and to the tally."""
        with self.lock:
            with (self.folder / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            self.found[result["row"]].add(result)
            if result["failure"]:
                print(f"FAILED {result['row']} {result['index']}: {result['failure']}", flush=True)

    def run(self, workers: int) -> None:
        """Work until all is done, the time is over, or Ctrl-C."""
        with ThreadPoolExecutor(workers) as pool:
            attending = [pool.submit(self.attend) for _ in range(workers)]
            try:
                wait(attending)
            except KeyboardInterrupt:
                self.stopped = True
                print(
                    "the cases that have begun are finished; the same command goes on from here", flush=True
                )
            for one in attending:
                one.result()


def table(found: dict[str, Tally], names: Sequence[str]) -> list[str]:
    """The rows as a table in Markdown."""
    lines = ["| row | fault | demanded | run | failures | seconds | |", "|---|---|---:|---:|---:|---:|---|"]
    for name in names:
        tally, row = found[name], found[name].row
        note = row.limit or ("time was over" if tally.open else "too few faults" if tally.short else "")
        run = f"{tally.cases:,} | {len(tally.failures)} | {tally.seconds:,.0f}" if row.lab else "– | – | –"
        lines.append(f"| {name} | {row.fault} | {tally.demanded:,} | {run} | {note} |")
    return lines


def one_case(name: str, seed: int, index: int) -> None:
    """Run a case in this process; its failure is raised."""
    lab = BY_NAME[name].lab
    if lab is None:
        sys.exit(f"{name}: {BY_NAME[name].limit}")
    with tempfile.TemporaryDirectory(prefix="highrank-nightly-") as folder, lab(Path(folder)) as case:
        print(f"{name} {index}: {case(dice(name, seed, index), index)} cases, no failure")


def main() -> int:
    parser = Options(__doc__)
    parser.add_argument(
        "--rows",
        nargs="+",
        choices=sorted(BY_NAME),
        default=list(BY_NAME),
        metavar="ROW",
        help="only these rows",
    )
    parser.add_argument("--minutes", type=float, default=80, help="time for all of them (80)")
    parser.add_argument("--workers", type=int, default=2, help="number of processes (2)")
    parser.add_argument("--times", type=int, default=1, help="multiples of what a night demands (1)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the cases (1)")
    parser.add_argument(
        "--dir", type=Path, default=ROOT / "build" / "nightly", metavar="FOLDER", help="build/nightly"
    )
    parser.add_argument("--again", action="store_true", help="run failures of these rows and seed again")
    parser.add_argument("--markdown", action="store_true", help="print the table and leave")
    parser.add_argument("--case", nargs=2, metavar=("ROW", "INDEX"), help="one case, here")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return 0
    if options.case:
        row, index = options.case
        if row not in BY_NAME or not index.isdecimal():
            parser.error(
                f"--case {row} {index}: give a row and a number; rows are {', '.join(sorted(BY_NAME))}"
            )
        one_case(row, options.seed, int(index))
        return 0
    names = options.rows
    if not options.markdown:
        night = Night(options)
        night.run(options.workers)
    found = tallies(options.dir / "results.jsonl", options.seed, options.times)
    print(*table(found, names), sep="\n")
    failures = [failure for name in names for failure in found[name].failures]
    failures += [f"{name}: too few faults" for name in names if found[name].short]
    open_rows = [name for name in names if found[name].open]
    if options.markdown:
        return 0
    print(*failures, sep="\n")
    if open_rows:
        print(f"not finished: {', '.join(open_rows)}; the same command goes on from here")
    return 1 if failures else Interrupted.exit_code if open_rows else 0


if __name__ == "__main__":
    sys.exit(main())
