"""Train, evaluate and analyse the heads of a table with several seeds. A second call resumes.

python scripts/train_table.py scripts/tables/ptb_small.toml --machine '2-core AMD EPYC'
python scripts/train_table.py scripts/tables/ptb_small.toml --heads mos,moc --seeds 2 --jobs 2 --machine '…'
python scripts/train_table.py scripts/tables/switchboard_bleu.toml --trial lr6 --seeds 1 --machine '…'
python scripts/train_table.py scripts/tables/ptb_small.toml --status

results/NAME.json gets one entry a training: its numbers, the hash of its config, and the nats of each block
or dialog of the test text. So the pages have means and tests over seeds after the runs are gone. NAME is that
of the table's file, with that of a trial after it. A training is repeated if its entry lacks these, or is of
another config or evaluation. Runs are in runs/NAME, with the output of their commands in HEAD-SEED.log.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from command_line import Options, run_script
from head_table import Table
from pages.result_entries import entry, hash_of_run, load, numbers_of_runs, torch_of

from lm.bootstrap import by_unit
from lm.disk.filelock import FileLock
from lm.disk.jsonfile import read_json, write_json
from lm.disk.storage import make_folder, require_writable
from lm.errors import ConfigError, HighrankError, require
from lm.machine import usable_processors
from lm.runs.evaluations import evaluation_names, load_evaluation, unhashed
from lm.stop import StopFlag

Entry = dict[str, Any]


class FailedError(HighrankError):
    """A command failed; the exit code is that of the command."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Training:
    """A head with a seed, the folder of its run, and the hash of its config."""

    table: Table
    head: str
    seed: int
    run: Path
    config_sha256: str

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.run.name

    @property
    def preset(self) -> str:
        """Preset of the head."""
        return f"{self.table.preset}{self.head}"

    def commands(self) -> Iterator[list[str]]:
        """Commands that train, evaluate and analyse. The training resumes; the others begin anew."""
        sets = [part for setting in self.table.seeded(self.seed) for part in ("--set", setting)]
        yield [self.table.program, "train", self.preset, *sets, "--run", str(self.run)]
        yield [self.table.program, "evaluate", str(self.run), *self.table.evaluate]
        for analysis, options in self.table.analyses.items():
            written = ["--json", str(self._analysis(analysis))]
            yield [self.table.program, "analyze", analysis, str(self.run), *options, *written]

    def measured(self, machine: str) -> Entry:
        """The entry of a finished training, in the form of results/*.json."""
        known = evaluation_names(self.run)
        named = f"evaluation = {self.table.evaluation!r} in the table: {self.run} has {', '.join(known)}"
        require(self.table.evaluation in known, f"{named}; correct the key")
        same = [name for name in known if unhashed(name) == unhashed(self.table.evaluation)]
        several = f"{self.run}/evaluation: has {', '.join(same)}, of several texts"
        require(len(same) == 1, f"{several}; remove it and run the same command again")
        analyses: dict[str, Any] = {name: read_json(self._analysis(name)) for name in self.table.analyses}
        result = load(self.run, self.table.evaluation, analyses)
        made = entry(
            self.table.heads[self.head],
            numbers_of_runs([result]),
            [self.seed],
            machine,
            config=self.preset,
            config_hash=self.config_sha256,
            settings=[],  # they are in the command; those of an entry are beside its preset
            command="; ".join(map(shlex.join, self.commands())),
            torch_version=torch_of(self.run),
        )
        if self.table.evaluation.startswith("valid"):
            del made["numbers"]["test_perplexity"]  # it is that of this split
        return made | {"measured": self.table.measured, "units": self._units()}

    def _units(self) -> dict[str, str]:
        """Hash of the test text, and nats and tokens of its units as one text, which keeps files short."""
        kept = load_evaluation(self.run, self.table.evaluation, (), (), self.table.program)
        contexts, unit = kept.contexts, self.table.unit
        columns = ", ".join(contexts)
        require(not unit or unit in contexts, f"unit = {unit!r} in the table: choose from {columns}")
        rows = contexts[unit] if unit else range(len(contexts["tokens"]))
        nats, tokens = (by_unit(rows, contexts[column]) for column in ("nll", "tokens"))
        return {
            "text_sha256": kept.result["data"]["sha256"][:16],
            "nats": " ".join(f"{value:.2f}" for value in nats),
            "tokens": " ".join(f"{value:.0f}" for value in tokens),
        }

    def require_same_config(self) -> None:
        """ConfigError if the folder of the run has a run of another config."""
        if (self.run / "config.json").exists():
            require(
                hash_of_run(self.run) == self.config_sha256,
                f"{self.run}: has another config; remove it, or name another folder with --runs",
            )

    def _analysis(self, name: str) -> Path:
        return self.run / f"{name}.json"


class Results:
    """A file of results, which gets an entry for each training, from any number of processes."""

    def __init__(self, path: Path, table: Table) -> None:
        self.path, self.table = path, table

    def _content(self) -> Any:
        if not self.path.exists():
            return {"about": self.table.about, "entries": []}
        content: Any = read_json(self.path)
        entries = content.get("entries") if isinstance(content, dict) else None
        whole = isinstance(entries, list) and all(
            isinstance(one, dict) and {"config", "seeds"} <= one.keys() for one in entries
        )
        require(whole, f"{self.path}: has no entries of results; name another file with --results")
        return content

    def missing(self, trainings: Sequence[Training]) -> list[Training]:
        """Trainings without an entry with units, of today's config and evaluation."""
        found = [
            (one["config"], one["seeds"], one.get("config_sha256"), one.get("measured"))
            for one in self._content()["entries"]
            if "units" in one
        ]
        return [
            one
            for one in trainings
            if (one.preset, [one.seed], one.config_sha256, one.table.measured) not in found
        ]

    def other(self, trainings: Sequence[Training]) -> list[str]:
        """Names of missing trainings with an entry of another config or measurement, or without units."""
        found = [(one["config"], one["seeds"]) for one in self._content()["entries"]]
        return [one.name for one in trainings if (one.preset, [one.seed]) in found]

    def add(self, made: Entry) -> None:
        """Write an entry in the order of heads and seeds. It replaces an entry of its preset and seed."""
        order = [f"{self.table.preset}{head}" for head in self.table.heads]

        def place(one: Entry) -> tuple[int, list[int]]:
            return (order.index(one["config"]) if one["config"] in order else len(order)), one["seeds"]

        own = made["config"], made["seeds"]
        with FileLock(self.path.with_suffix(".lock")):  # a process waits until another has added its entry
            content = self._content()
            others = [one for one in content["entries"] if (one["config"], one["seeds"]) != own]
            content["entries"] = sorted([*others, made], key=place)
            write_json(self.path, content)


class Runner:
    """Commands of trainings in processes of their own, which a signal stops so that trainings are saved.

    ``jobs`` of them share the processors, as more threads than processors wait for each other.
    """

    def __init__(self, stop: StopFlag, jobs: int) -> None:
        self._stop = stop
        threads = str(max(1, usable_processors() // jobs))
        self._environment = {"OMP_NUM_THREADS": threads} | os.environ
        self._live: set[subprocess.Popen[bytes]] = set()
        self._starting = threading.Lock()

    def run(self, training: Training) -> None:
        """Run the commands of a training, with their output in ``RUN.log``. FailedError if one fails."""
        make_folder(training.run.parent)
        log = training.run.with_name(f"{training.name}.log")
        for command in training.commands():
            with log.open("ab") as output:
                begin = output.tell()
                process = self._start(command, output)
                code = process.wait()
                self._live.discard(process)
            if code:
                last = log.read_bytes()[begin:].decode(errors="replace").strip().rpartition("\n")[2]
                raise FailedError(f"{' '.join(command[:2])}: exit code {code}: {last} ({log})", code)

    def _start(self, command: Sequence[str], output: IO[bytes]) -> "subprocess.Popen[bytes]":
        """Start a command, unless a signal came. One that starts meanwhile is signalled, too."""
        with self._starting:
            self._stop.check()
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # a Ctrl-C of the terminal comes from interrupt() alone
            )
            self._live.add(process)
        return process

    def interrupt(self) -> None:
        """Signal all running commands."""
        with self._starting:
            for process in list(self._live):
                process.send_signal(signal.SIGINT)


def run_all(left: Sequence[Training], results: Results, jobs: int, machine: str) -> int:
    """Run trainings and add their entries. Return the exit code of the last that failed, or 0.

    One that fails does not stop the others. Interrupted after a signal, when all have stopped.
    """
    code = 0
    pool = ThreadPoolExecutor(jobs)
    with StopFlag(notice="stopping when the trainings have saved; another signal ends at once") as stop:
        runner = Runner(stop, jobs)
        running = {pool.submit(runner.run, training): training for training in left}
        try:
            with stop.raising():
                for ended in as_completed(running):
                    training = running[ended]
                    try:
                        ended.result()
                        results.add(training.measured(machine))
                        print(f"{training.name}: added to {results.path}", flush=True)
                    except HighrankError as error:
                        code = error.exit_code
                        print(f"{training.name}: {error}", file=sys.stderr, flush=True)
                    except Exception as error:  # such as a full disk under its log
                        code = 1
                        print(f"{training.name}: {error!r}", file=sys.stderr, flush=True)
        finally:
            runner.interrupt()
            pool.shutdown(cancel_futures=True)
    return code


def trainings(table: Table, heads: Sequence[str], seeds: Sequence[int], runs: Path) -> list[Training]:
    """Trainings of heads with seeds, seed by seed. ConfigError for a bad preset or setting."""
    return [
        Training(table, head, seed, runs / f"{head}-{seed}", table.hash_of(head, seed))
        for seed in dict.fromkeys(seeds)
        for head in dict.fromkeys(heads)
    ]


def names(text: str) -> list[str]:
    """Names between commas."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise argparse.ArgumentTypeError("give at least one name")
    return found


def seeds(text: str) -> list[int]:
    """Seeds between commas."""
    return [int(name) for name in names(text)]


def count(text: str) -> int:
    """A number of trainings."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(text)


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("table", type=Path, help="file of scripts/tables")
    parser.add_argument("--machine", default="", help="the machine, as the results name it")
    parser.add_argument("--heads", type=names, help="names of heads between commas; default: all")
    parser.add_argument("--seeds", type=seeds, help="seeds between commas; default: those of the table")
    parser.add_argument("--trial", metavar="NAME", help="a trial of the table; results: NAME_TRIAL.json")
    parser.add_argument("--jobs", type=count, metavar="N", default=1, help="trainings at a time")
    parser.add_argument("--runs", type=Path, help="folder of the runs; default: runs/NAME")
    parser.add_argument("--results", type=Path, help="file of the results; default: results/NAME.json")
    parser.add_argument("--status", action="store_true", help="only list what is missing")
    options = parser.parse_args()
    table, name = Table.read(options.table), options.table.stem
    if options.trial:
        table, name = table.trial(options.trial), f"{name}_{options.trial}"
    results = Results(options.results or Path("results") / f"{name}.json", table)
    runs, heads = options.runs or Path("runs") / name, options.heads or list(table.heads)
    unknown = ",".join(head for head in heads if head not in table.heads)
    require(not unknown, f"--heads {unknown}: choose from {', '.join(table.heads)}")
    try:
        chosen = trainings(table, heads, options.seeds or table.seeds, runs)
    except ConfigError as error:
        raise ConfigError(f"{options.table}: {error}") from None
    left = results.missing(chosen)
    listed = ", ".join(training.name for training in left)
    print(f"missing: {len(left)} of {len(chosen)} trainings{': ' if left else ''}{listed}", flush=True)
    if replaced := ", ".join(results.other(left)):
        print(f"{results.path} has other entries, without units or of another config: {replaced}", flush=True)
    if options.status:
        return
    if not left:
        print(f"{results.path} has them; to measure again, name another file with --results", flush=True)
        return
    require(options.machine, "name the machine with --machine TEXT")
    for training in left:
        training.require_same_config()
    make_folder(results.path.absolute().parent)
    require_writable(results.path)
    sys.exit(run_all(left, results, options.jobs, options.machine))


if __name__ == "__main__":
    run_script(main)
