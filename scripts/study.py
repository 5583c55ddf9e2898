"""Trains, evaluates and analyses every head of a study with every seed; a second call goes on.

python scripts/study.py scripts/studies/ptb_small.toml --machine '2-core AMD EPYC'
python scripts/study.py scripts/studies/ptb_small.toml --heads softmax,mos --seeds 2,3 --jobs 2 --machine '…'
python scripts/study.py scripts/studies/ptb_small.toml --status

results/NAME.json gets one entry a training: its numbers, the hash of its config, and the nats of each block
or dialog of the test text. So the pages have means and tests over seeds after the runs are gone. A training
whose entry exists is not repeated.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results_table import entry, load
from run_logs import errors_in_one_line

from lm.bootstrap import by_unit
from lm.config.tomlfile import read_toml
from lm.disk.storage import read_json, write_json
from lm.errors import HighrankError, require

ROOT = Path(__file__).resolve().parent.parent
INTERRUPTED = 130  # exit code


@dataclass(frozen=True)
class Study:
    """A study: what is trained, and how each training is measured."""

    about: str  # first line of the results
    program: str
    preset: str  # beginning of the presets' names
    settings: Sequence[str]
    seeds: Sequence[int]
    evaluation: str  # name of the evaluation
    evaluate: Sequence[str]
    unit: str  # column of its contexts that names a unit of the text; "": every row is one
    analyses: Mapping[str, Sequence[str]]  # options by command of `lm analyze`
    heads: Mapping[str, str]  # labels by end of the preset's name

    def trainings(self, heads: Sequence[str], seeds: Sequence[int], runs: Path) -> list["Training"]:
        """Those of some heads with some seeds, seed by seed. ConfigError for a head that it has not."""
        unknown = ",".join(head for head in heads if head not in self.heads)
        require(not unknown, f"--heads {unknown}: choose from {', '.join(self.heads)}")
        return [Training(self, head, seed, runs / f"{head}-{seed}") for seed in seeds for head in heads]


@dataclass(frozen=True)
class Training:
    """A head with a seed, and the folder of its run."""

    study: Study
    head: str
    seed: int
    run: Path

    @property
    def key(self) -> tuple[str, int]:
        """Preset and seed, which identify an entry."""
        return f"{self.study.preset}{self.head}", self.seed

    def commands(self) -> Iterator[list[str]]:
        """Commands that train, evaluate and analyse; each is quick if its work is done."""
        preset, seed = self.key
        settings = [*self.study.settings, f"train.seed={seed}"]
        sets = [part for setting in settings for part in ("--set", setting)]
        yield [self.study.program, "train", preset, *sets, "--run", str(self.run)]
        yield [self.study.program, "evaluate", str(self.run), *self.study.evaluate]
        for analysis, options in self.study.analyses.items():
            written = ["--json", str(self._analysis(analysis))]
            yield ["lm", "analyze", analysis, str(self.run), *options, *written]

    def measured(self, machine: str) -> dict[str, Any]:
        """The entry of a finished training, in the form of results/*.json."""
        analyses: list[Any] = [read_json(self._analysis(name)) for name in self.study.analyses]
        result = load(self.run, self.study.evaluation, analyses)
        made = entry(self.study.heads[self.head], [self.run], [result], machine)
        preset, _ = self.key
        command = "; ".join(map(shlex.join, self.commands()))
        made |= {"config": preset, "settings": [], "command": command}
        return made | {"units": units(self.run, self.study)}

    def _analysis(self, name: str) -> Path:
        return self.run / f"{name}.json"


def units(run: Path, study: Study) -> dict[str, str]:
    """Hash of the test text, and nats and tokens of its units."""
    record: Any = read_json(run / "evaluation" / f"{study.evaluation}.json")
    contexts = record["contexts"]
    rows = contexts[study.unit] if study.unit else range(len(contexts["tokens"]))
    nats, tokens = (by_unit(rows, contexts[column]) for column in ("nll", "tokens"))
    return {
        "text_sha256": record["result"]["data"]["sha256"][:16],
        "nats": " ".join(f"{value:.2f}" for value in nats),
        "tokens": " ".join(f"{value:.0f}" for value in tokens),
    }


class Results:
    """A file of results, which gets an entry for each training."""

    def __init__(self, path: Path, study: Study) -> None:
        self.path, self.study = path, study

    def _content(self) -> Any:
        return read_json(self.path) if self.path.exists() else {"about": self.study.about, "entries": []}

    def trained(self) -> set[tuple[str, int]]:
        """Preset and seed of every entry."""
        return {(one["config"], seed) for one in self._content()["entries"] for seed in one["seeds"]}

    def add(self, made: Mapping[str, Any]) -> None:
        """Write an entry, in the order of the study's heads and of seeds."""
        order = [f"{self.study.preset}{head}" for head in self.study.heads]
        content = self._content()

        def place(one: Mapping[str, Any]) -> tuple[int, Sequence[int]]:
            return (order.index(one["config"]) if one["config"] in order else len(order)), one["seeds"]

        content["entries"] = sorted([*content["entries"], made], key=place)
        write_json(self.path, content)


def run(training: Training) -> None:
    """Run the commands of a training; HighrankError for the first that fails."""
    for command in training.commands():
        program = [sys.executable, "-m", *command]
        ended = subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        last = (ended.stderr.strip() or ended.stdout.strip()).rpartition("\n")[2]
        require(not ended.returncode, f"{shlex.join(command)}: exit code {ended.returncode}: {last}")


def run_all(left: Sequence[Training], results: Results, jobs: int, machine: str) -> int:
    """Run trainings and add their entries; the exit code. One that fails does not stop the others."""
    code = 0
    pool = ThreadPoolExecutor(jobs)
    running = {pool.submit(run, training): training for training in left}
    try:
        for ended in as_completed(running):
            training = running[ended]
            name = f"{training.head}-{training.seed}"
            try:
                ended.result()
                results.add(training.measured(machine))
                print(f"{name}: added to {results.path}", flush=True)
            except HighrankError as error:
                code = error.exit_code
                print(f"{name}: {error}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:  # which the programs got, too; a training of theirs resumes
        code = INTERRUPTED
    pool.shutdown(cancel_futures=True)
    return code


def listed(text: str) -> list[str]:
    """Names between commas."""
    return [name for name in text.split(",") if name]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, help="file of a study")
    parser.add_argument("--machine", default="", help="the machine, as the results name it")
    parser.add_argument("--heads", type=listed, help="ends of presets between commas; default: all")
    parser.add_argument("--seeds", type=listed, help="seeds between commas; default: those of the study")
    parser.add_argument("--jobs", type=int, default=1, help="number of trainings at a time")
    parser.add_argument("--runs", type=Path, help="folder of the runs; default: runs/NAME")
    parser.add_argument("--results", type=Path, help="file of the results; default: results/NAME.json")
    parser.add_argument("--status", action="store_true", help="only list what is missing")
    options = parser.parse_args()
    name = options.study.stem
    study = Study(**read_toml(options.study)[0])
    results = Results(options.results or ROOT / "results" / f"{name}.json", study)
    seeds = [int(seed) for seed in options.seeds or study.seeds]
    chosen = study.trainings(options.heads or list(study.heads), seeds, options.runs or Path("runs") / name)
    left = [training for training in chosen if training.key not in results.trained()]
    names = ", ".join(f"{training.head}-{training.seed}" for training in left)
    print(f"missing: {len(left)} of {len(chosen)} trainings{': ' if names else ''}{names}", flush=True)
    if not options.status:
        require(options.machine or not left, "name the machine with --machine TEXT")
        sys.exit(run_all(left, results, options.jobs, options.machine))


if __name__ == "__main__":
    with errors_in_one_line():
        main()
