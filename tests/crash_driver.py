"""Kills real ``dialog train`` processes, runs the same command again, and compares what they leave behind.

Shared by ``test_crash.py`` and ``scripts/crash_test.py``. A *case* is a tiny configuration, trained once
without interruption; a *trial* trains it again in a new folder under one or more *blows*. After every blow
the run must still check as intact and must not have lost a checkpoint; at the end no bit may differ.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from crash_server import place_of

HERE = Path(__file__).resolve().parent
LIMIT = 120.0  # seconds after which a process that trains for half a second counts as hung
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NO_COLOR": "1"}
INTERRUPTED, UNREADABLE = 75, 4  # exit codes

# Files of a run that tell the time, or who ran it; a manifest's hashes are those of the files beside it.
NOT_REPRODUCIBLE = {"timing.jsonl", "lock", "manifest.json"}

BASE: dict[str, dict[str, object]] = {
    "data": {"vocab_size": 60, "max_tokens": 12, "context": 3, "segment": 3},
    "model": {"embedding_size": 8, "dropout": 0.2, "word_dropout": 0.1},
    "encoder": {"kind": "hierarchical", "utterance_size": 6, "context_size": 8},
    "decoder": {"hidden_size": 8},
    "head": {"kind": "softmax"},
    "optim": {"name": "adam", "lr": 0.01},
    "train": {
        "max_steps": 12, "batch_size": 4, "validate_every": 4, "checkpoint_every": 3,
        "log_every": 2, "keep_best": 2, "keep_last": 2, "device": "cpu", "threads": 1,
    },
}  # fmt: skip
HEADS: dict[str, dict[str, object]] = {
    "softmax": {},
    "sigsoftmax": {"learn_shift": True},
    "moc": {"components": 3, "embedding_size": 6},
    "mos": {"components": 3, "embedding_size": 6, "latent_dropout": 0.2},
    "moss": {"components": 2, "embedding_size": 6, "learn_context_scale": True},
}
OPTIMIZERS: dict[str, dict[str, object]] = {
    "adam": {"average": "ema", "ema_decay": 0.9, "schedule": "plateau"},
    "adamw": {"weight_decay": 0.1, "schedule": "cosine", "warmup_steps": 2, "decay_steps": 10},
    "sgd": {"lr": 0.5, "momentum": 0.9, "average": "uniform", "average_start": 5},
}
SENTENCES = (
    "well I like the garden/my sister grows beans/we walk on sundays/that sounds nice/do you cook/uh-huh/yes"
)


@dataclass(frozen=True)
class Case:
    """A configuration; the parts that head and optimiser leave open differ from case to case."""

    head: str = "softmax"
    optimizer: str = "adam"
    flat: bool = False
    accumulate: int = 1
    tokenizer: str = "wordpunct"

    @property
    def name(self) -> str:
        encoder = "flat" if self.flat else "hierarchical"
        return f"{self.head}-{self.optimizer}-{encoder}-{self.tokenizer}-x{self.accumulate}"

    def tables(self, corpus: Path) -> dict[str, dict[str, object]]:
        """The config sections."""
        tables = {section: dict(values) for section, values in BASE.items()}
        tables["data"] |= {split: str(corpus / f"{split}.jsonl") for split in ("train", "valid", "test")}
        tables["data"]["tokenizer"] = self.tokenizer
        tables["head"] |= {"kind": self.head, **HEADS[self.head]}
        tables["optim"] |= {"name": self.optimizer, **OPTIMIZERS[self.optimizer]}
        tables["train"]["accumulate"] = self.accumulate
        if self.flat:
            tables["encoder"] |= {"kind": "flat", "cell": "lstm", "layers": 2}
            tables["decoder"] |= {"layers": 2, "attention": "additive"}
        return tables


def all_cases() -> list[Case]:
    """Every head with every optimiser; encoders, accumulation and tokenizers take turns."""
    tokenizers = ("wordpunct", "char", "bpe", "whitespace")
    return [
        Case(head, optimizer, number % 2 == 1, 1 + number % 3 // 2, tokenizers[number % 4])
        for number, (head, optimizer) in enumerate(product(HEADS, OPTIMIZERS))
    ]


def write_corpus(folder: Path) -> None:
    """Invented conversations: about five batches an epoch, so that trainings end in the middle of one."""
    rng = random.Random(7)
    folder.mkdir()
    for split, count in (("train", 8), ("valid", 2), ("test", 2)):
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for _ in range(count):
                utts = [
                    ["AB"[turn % 2], " . ".join(rng.choices(SENTENCES.split("/"), k=rng.randint(1, 3)))]
                    for turn in range(8)
                ]
                file.write(json.dumps({"topic": "weekend", "utts": utts}) + "\n")


def write_toml(path: Path, tables: dict[str, dict[str, object]]) -> None:
    """A config file; JSON and TOML spell these values alike."""
    lines: list[str] = []
    for section, values in tables.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Blow:
    """Signals to a process: at its ``at``-th change of the disk (of those at ``place``), or after seconds."""

    signals: tuple[int, ...] = (signal.SIGKILL,)
    at: int = 0
    place: str = ""
    after: float = 0.0

    @property
    def deadly(self) -> bool:
        return signal.SIGKILL in self.signals

    def __str__(self) -> str:
        names = "+".join(signal.Signals(number).name for number in self.signals)
        return (
            f"{names} after {self.after:.3f} s"
            if self.after
            else f"{names} at {self.place or 'step'} {self.at}"
        )


@dataclass(frozen=True)
class Ended:
    """How a process ended: exit code or −signal, and the steps that it reached."""

    code: int
    seconds: float
    steps: list[str]
    hung: bool
    output: str

    def __str__(self) -> str:
        return f"exit {self.code}{', hung' if self.hung else ''}: {self.output.strip()[-300:] or 'no output'}"


@dataclass
class Outcome:
    """A trial: what was done, and what is wrong (nothing, if all is well)."""

    case: str
    blows: list[str]
    kills: int = 0  # processes that ended by SIGKILL
    interrupted: int = 0  # processes that ended with exit code 75
    struck: list[str] = field(default_factory=list)  # the step that a blow fell on, or the last one before it
    failure: str = ""


@dataclass(frozen=True)
class Reference:
    """A case trained without interruption."""

    case: Case
    config: Path
    marks: dict[str, str]
    steps: list[str]
    seconds: float


class ForkServer:
    """``dialog`` commands in forked children of a process that has imported everything."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.process = subprocess.Popen(
            [sys.executable, HERE / "crash_server.py"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE.parent,
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": str(HERE.parent)},
        )  # fmt: skip
        self.read()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the fork server ended with exit code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, arguments: Sequence[object], watch: Path, blow: Blow | None = None) -> Ended:
        """Run one command to its end."""
        self.output.write_text("")  # a child may be dead before it opens it
        request: dict[str, Any] = {
            "arguments": [str(argument) for argument in arguments],
            "watch": str(watch),
            "output": str(self.output),
            "limit": LIMIT,
        }
        if blow:
            request |= {"signals": [int(n) for n in blow.signals], "at": blow.at, "place": blow.place}
        if blow and blow.after:
            request["after"] = blow.after
        assert self.process.stdin
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return Ended(**self.read(), output=self.output.read_text(encoding="utf-8", errors="replace"))

    def close(self) -> None:
        with self.process:  # closes its pipes, which ends it, and waits
            pass


@contextmanager
def crash_lab(folder: Path) -> Iterator["Lab"]:
    """A lab in ``folder``, with its fork server."""
    lab = Lab(folder)
    try:
        yield lab
    finally:
        lab.server.close()


class Lab:
    """Trains cases, undisturbed or not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_corpus(self.folder / "corpus")
        self.server = ForkServer(self.folder / "output.txt")
        self.references: dict[Case, Reference] = {}
        self.trials = 0

    def train(self, config: Path, run: Path, blow: Blow | None = None) -> Ended:
        return self.server.run(["train", config, "--run", run], run, blow)

    def reference(self, case: Case) -> Reference:
        """The case trained without interruption, twice: it must be reproducible to begin with."""
        if case not in self.references:
            config = self.folder / f"{case.name}.toml"
            write_toml(config, case.tables(self.folder / "corpus"))
            runs = [self.folder / f"{case.name}-{attempt}" for attempt in (1, 2)]
            ended = [self.train(config, run) for run in runs]
            for end in ended:
                if end.code:
                    raise RuntimeError(f"{case.name} does not train: {end}")
            marks = [fingerprint(run) | self.check(run) for run in runs]
            if marks[0] != marks[1]:
                raise RuntimeError(f"{case.name} trains differently the second time: {difference(*marks)}")
            seconds = min(end.seconds for end in ended)
            self.references[case] = Reference(case, config, marks[0], ended[1].steps, seconds)
        return self.references[case]

    def check(self, run: Path) -> dict[str, str]:
        """What ``dialog check`` says of a run; its step is −1 where there is no checkpoint yet."""
        report = self.folder / "check.json"
        report.unlink(missing_ok=True)
        ended = self.server.run(["check", run, "--json", report], run)
        if ended.steps:
            raise RuntimeError(f"dialog check changed the run: {ended.steps}")
        if ended.code == UNREADABLE and not list(run.glob("checkpoints/step-*[0-9]")):
            return {"check step": "-1"}
        if ended.code:
            raise RuntimeError(f"dialog check: {ended}")
        said = json.loads(report.read_text(encoding="utf-8"))
        return {"check step": str(said["step"]), "state_sha256": said["state_sha256"]}

    def trial(self, case: Case, blows: Sequence[Blow]) -> Outcome:
        """Train under the blows, one process for each, then to the end, and compare with the reference."""
        reference = self.reference(case)
        outcome = Outcome(case.name, [str(blow) for blow in blows])
        self.trials += 1
        run = self.folder / f"trial-{self.trials}"
        try:
            outcome.failure = self.suffer(reference, run, blows, outcome)
        except RuntimeError as error:
            outcome.failure = str(error)
        if not outcome.failure:
            shutil.rmtree(run)
        return outcome

    def suffer(self, reference: Reference, run: Path, blows: Sequence[Blow], outcome: Outcome) -> str:
        """What goes wrong in a trial; empty if nothing does."""
        step = -1
        for blow in blows:
            ended = self.train(reference.config, run, blow)
            outcome.kills += ended.code == -signal.SIGKILL and not ended.hung
            outcome.interrupted += ended.code == INTERRUPTED
            outcome.struck.append(ended.steps[-1] if ended.steps else "before the first step")
            expected = (0, -signal.SIGKILL) if blow.deadly else (0, INTERRUPTED)
            if ended.hung or ended.code not in expected:
                return f"{blow}: {ended}"
            if not run.exists():
                continue
            before, step = step, int(self.check(run)["check step"])
            if step < before:
                return f"{blow}: step {before} was saved, now it is step {step}"
            if (
                ended.code == INTERRUPTED
                and len(blow.signals) == 1
                and f"step {step} is saved" not in ended.output
            ):
                return f"{blow}: the last checkpoint is of step {step}, but it said: {ended}"
        ended = self.train(reference.config, run)
        if ended.code or ended.hung:
            return f"the last process: {ended}"
        marks, expected_marks = fingerprint(run) | self.check(run), reference.marks
        if not all(blow.deadly for blow in blows):  # saving on a signal leaves a checkpoint of its own
            marks, expected_marks = without_older(marks), without_older(expected_marks)
        return difference(marks, expected_marks)


def fingerprint(run: Path) -> dict[str, str]:
    """SHA-256 of every file that two equal trainings have in common."""
    files = (path for path in run.rglob("*") if path.is_file() and path.name not in NOT_REPRODUCIBLE)
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)
    }


def without_older(marks: dict[str, str]) -> dict[str, str]:
    """Without the checkpoints before the last one."""
    last = max(name.split("/")[1] for name in marks if name.startswith("checkpoints/step-"))
    return {
        name: mark for name, mark in marks.items() if last in name or not name.startswith("checkpoints/step-")
    }


def difference(marks: dict[str, str], expected: dict[str, str]) -> str:
    """The names whose marks differ, are missing or too many; empty if there are none."""
    kinds = {
        "differ": [name for name in marks.keys() & expected.keys() if marks[name] != expected[name]],
        "are missing": expected.keys() - marks.keys(),
        "are too many": marks.keys() - expected.keys(),
    }
    return "; ".join(f"{', '.join(sorted(names))} {kind}" for kind, names in kinds.items() if names)


def chains_through_every_place(steps: Sequence[str], chains: int) -> list[list[Blow]]:
    """SIGKILLs at every kind of step that a training takes, as few trainings with many kills in a row.

    What happens only at the start of a run comes first in a chain. What happens in every commit is struck at
    its second occurrence, so that a process gets one commit further before the next blow falls.
    """
    places = Counter(map(place_of, steps))
    blows = [Blow(place=place, at=2 if count > 5 else 1) for place, count in places.items()]
    return [blows[first::chains] for first in range(chains)]


def random_blows(reference: Reference, rng: random.Random, count: int) -> list[Blow]:
    """SIGKILLs at random times or at random steps of an undisturbed training, as often the one as the other.

    A process that resumes has less to do; the later a blow, the less of the training it is spread over.
    """
    blows = []
    for share in (1 / (1 + number / 2) for number in range(count)):
        if rng.random() < 0.5:
            blows.append(Blow(after=max(1e-3, rng.uniform(0, share * reference.seconds))))
        else:
            blows.append(Blow(at=rng.randint(1, int(share * len(reference.steps)))))
    return blows


def kill_interpreter(config: Path, run: Path, delay: float) -> int:
    """Train with ``python -m dialog`` itself, and SIGKILL it some seconds after its first commit."""
    command = [sys.executable, "-m", "dialog", "train", str(config), "--run", str(run)]
    process = subprocess.Popen(
        command,
        cwd=HERE.parent,
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and not list(run.glob("checkpoints/step-*[0-9]")):
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    return process.wait()
