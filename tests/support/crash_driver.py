"""Kills real processes, runs the same command again, and compares what they leave behind.

Shared by ``system/test_crash.py`` and the fault matrix. A :class:`Case` is a command and all that it needs,
tiny; it is run without interruption first. A *trial* runs it again in a new folder under one or more *blows*.
After every blow what is there must be intact, and nothing that was saved may be lost; at the end no bit may
differ. The cases are in ``crash_dialog.py`` and ``crash_lm.py``.
"""

import hashlib
import json
import random
import shutil
import signal
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from lm.errors import HighrankError
from lm.runs.check import check_run
from tests.support.crash_process import Blow, Ended, ForkServer
from tests.support.crash_server import place_of

INTERRUPTED, UNREADABLE = 75, 4  # exit codes
TOLD = "interrupted; run the same command again"  # before anything has begun, or after all is saved
OVER = "the training had ended"  # when the signal came
REFUSED = (0, 3, UNREADABLE)  # where the disk does not do as it is told

# Files that tell the time, or who ran it; the hashes in a manifest are those of the files beside it.
NOT_REPRODUCIBLE = {"timing.jsonl", "lock", "manifest.json"}
# What a killed process was about to rename, in a folder where others may be writing, stays there.
LEFTOVERS = ("run/evaluation/.*.tmp", "results/.*.tmp")

# What the cases of both families have in common
HEADS: dict[str, dict[str, object]] = {
    "softmax": {},
    "sigsoftmax": {"learn_shift": True},
    "moc": {"components": 3, "embedding_size": 6},
    "mos": {"components": 3, "embedding_size": 6, "latent_dropout": 0.2},
    "moss": {"components": 2, "embedding_size": 6, "learn_context_scale": True},
    "mixtape": {"components": 2, "embedding_size": 6, "gated_words": 5},
    "plif": {"intervals": 20, "temperature": "sigmoid", "temperature_rank": 3},
    "mfs": {"components": 3, "embedding_size": 6, "partitions": 2, "facet_layers": 1},
    "cpr": {"components": 2, "embedding_size": 6, "candidates": (2, 5), "facet_layers": 1},
    "doc": {"components": 3, "embedding_size": 6, "lower_components": [1], "prior_penalty": 1e-3},
}
TRAIN: dict[str, object] = {
    "max_steps": 12, "batch_size": 4, "validate_every": 4, "checkpoint_every": 3,
    "log_every": 2, "keep_best": 2, "keep_last": 2, "device": "cpu", "threads": 1,
}  # fmt: skip
Tables = dict[str, dict[str, object]]


class Case(ABC):
    """A command that is run to its end in an empty folder, killed or not; equal ones have one reference."""

    program: ClassVar[str]
    settings: ClassVar[Mapping[str, object]] = {}  # module.ATTRIBUTE → value, where the usual one takes hours

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def arguments(self, lab: "Lab") -> list[object]:
        """The command, run inside the folder; the files that it names are :meth:`Lab.shared`."""

    def begin(self, lab: "Lab", place: Path) -> None:
        """Puts into the folder what lies there before the first process: nothing, unless it is overridden."""
        return

    @abstractmethod
    def saved(self, lab: "Lab", place: Path) -> dict[str, str]:
        """Marks of what is there: ``step``, a number that may not fall, and others.

        RuntimeError where anything is damaged or half written.
        """

    def step(self, lab: "Lab", place: Path) -> str:
        """The step of :meth:`saved`."""
        return self.saved(lab, place)["step"]

    @abstractmethod
    def promise(self, step: str) -> str:
        """The line of a process that one signal has ended, with this step saved."""


class Training(Case):
    """A command that trains into ``run``."""

    @staticmethod
    def opened(base: Tables, folder: Path, suffix: str = "") -> Tables:
        """A copy of the sections of ``base``, with the splits in ``folder`` as data."""
        tables = {section: dict(values) for section, values in base.items()}
        splits = {split: str(folder / f"{split}{suffix}") for split in ("train", "valid", "test")}
        tables["data"] = tables.get("data", {}) | splits
        return tables

    def saved(self, lab: "Lab", place: Path) -> dict[str, str]:
        return lab.check(self.program, place / "run")

    def step(self, lab: "Lab", place: Path) -> str:
        return lab.step(place / "run")

    def promise(self, step: str) -> str:
        return f"step {step} is saved"


def whole_corpus(out: Path) -> dict[str, Any]:
    """The manifest of what ``prepare`` wrote, {} without any; RuntimeError for anything between."""
    if not out.exists():
        return {}
    try:
        manifest: dict[str, Any] = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
        wrong = [name for name, sha256 in manifest["outputs"].items() if sha256 != sha256_of(out / name)]
    except (OSError, ValueError, KeyError) as error:
        raise RuntimeError(f"half a corpus: {error!r}") from error
    if wrong:
        raise RuntimeError(f"half a corpus: {wrong} differ")
    return manifest


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_toml(path: Path, tables: Tables) -> None:
    """A config file; JSON and TOML spell these values alike."""
    lines: list[str] = []
    for section, values in tables.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


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
    """A case that nothing has interrupted."""

    place: Path
    marks: dict[str, str]
    steps: list[str]
    seconds: float


@contextmanager
def crash_lab(folder: Path) -> Iterator["Lab"]:
    """A lab in ``folder``, with its fork server."""
    lab = Lab(folder)
    try:
        yield lab
    finally:
        lab.server.close()


class Lab:
    """Runs cases, undisturbed or not, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.server = ForkServer(self.folder / "output.txt")
        self.references: dict[Case, Reference] = {}
        self.trials = 0

    def shared(self, name: str, make: Callable[[Path], object]) -> Path:
        """A file or folder of this name, which several cases may need: made where it is missing."""
        path = self.folder / name
        if not path.exists():
            make(path)
        return path

    def run(self, case: Case, place: Path, blow: Blow | None = None, record: Path | None = None) -> Ended:
        """One process of a case."""
        command = [case.program, *case.arguments(self)]
        ended = self.server.run(command, place, blow, case.settings, record=record)
        if blow and blow.disk:
            shutil.rmtree(place)
            Path(f"{place}.disk").rename(place)
        return ended

    def new_place(self, case: Case) -> Path:
        """An empty folder with what the case begins with."""
        self.trials += 1
        place = self.folder / f"trial-{self.trials}"
        place.mkdir()
        case.begin(self, place)
        return place

    def command(
        self, command: Sequence[object], place: Path, settings: Mapping[str, object] | None = None
    ) -> Ended:
        """A command that has to succeed: RuntimeError where it does not."""
        ended = self.server.run(command, place, None, settings)
        if ended.code:
            raise RuntimeError(f"{' '.join(map(str, command))}: {ended}")
        return ended

    def finish(self, case: Case, place: Path) -> Ended:
        """Run a case in a new folder from beginning to end; RuntimeError where it fails."""
        place.mkdir()
        case.begin(self, place)
        return self.command([case.program, *case.arguments(self)], place, case.settings)

    def marks(self, case: Case, place: Path) -> dict[str, str]:
        """Everything that two equal results have in common."""
        return fingerprint(place) | case.saved(self, place)

    def reference(self, case: Case) -> Reference:
        """The case without interruption, twice: it must be reproducible to begin with."""
        if case not in self.references:
            places = [self.folder / f"{case.name}-{attempt}" for attempt in (1, 2)]
            ended = [self.finish(case, place) for place in places]
            marks = [self.marks(case, place) for place in places]
            if marks[0] != marks[1]:
                raise RuntimeError(f"{case.name} ends differently the second time: {difference(*marks)}")
            seconds = min(end.seconds for end in ended)
            self.references[case] = Reference(places[0], marks[0], ended[1].steps, seconds)
        return self.references[case]

    def check(self, program: str, run: Path) -> dict[str, str]:
        """What ``check`` says of a run; its step is −1 where there is no checkpoint yet."""
        if not run.exists():
            return {"step": "-1"}
        report = self.folder / "check.json"
        report.unlink(missing_ok=True)
        ended = self.server.run([program, "check", run, "--json", report], run)
        if ended.steps:
            raise RuntimeError(f"{program} check changed the run: {ended.steps}")
        if ended.code == UNREADABLE and not list(run.glob("checkpoints/step-*[0-9]")):
            return {"step": "-1"}
        if ended.code:
            raise RuntimeError(f"{program} check: {ended}")
        said = json.loads(report.read_text(encoding="utf-8"))
        return {"step": str(said["step"]), "state_sha256": said["state_sha256"]}

    def step(self, run: Path) -> str:
        """The step that :meth:`check` says, found in this process, which takes a fifth of the time."""
        if not list(run.glob("checkpoints/step-*[0-9]")):
            return "-1"
        try:
            found = check_run(run)
        except HighrankError as error:
            raise RuntimeError(f"check: {error}") from error
        if found.problems:
            raise RuntimeError(f"check: {found.problems[0]}")
        return str(found.step)

    def trial(self, case: Case, blows: Sequence[Blow]) -> Outcome:
        """Run the case under the blows, one process for each, then to its end; compare with the reference."""
        reference = self.reference(case)
        outcome = Outcome(case.name, [str(blow) for blow in blows])
        place = self.new_place(case)
        try:
            outcome.failure = self.suffer(case, place, blows, outcome)
            outcome.failure = outcome.failure or self.outlive(case, place, blows, reference)
        except RuntimeError as error:
            outcome.failure = str(error)
        if not outcome.failure:
            shutil.rmtree(place)
        return outcome

    def suffer(self, case: Case, place: Path, blows: Sequence[Blow], outcome: Outcome) -> str:
        """What goes wrong under the blows; empty if nothing does."""
        step = -1
        for blow in blows:
            ended = self.run(case, place, blow)
            outcome.kills += ended.code == -signal.SIGKILL and not ended.hung
            outcome.interrupted += ended.code == INTERRUPTED
            outcome.struck.append(ended.steps[-1] if ended.steps else "before the first step")
            expected = (0, -signal.SIGKILL) if blow.deadly else (0, INTERRUPTED)
            if blow.shortage:
                expected = REFUSED
            if ended.hung or ended.code not in expected:
                return f"{blow}: {ended}"
            before, step = step, int(case.step(self, place))
            if step < before:
                return f"{blow}: step {before} was saved, now it is step {step}"
            promised = case.promise(str(step)) in ended.output or (
                step <= max(before, 0) and TOLD in ended.output
            )
            if OVER in ended.output or (TOLD in ended.output and not promised):  # after the last update
                promised = step == int(case.step(self, self.reference(case).place))
            told = ended.code != INTERRUPTED or len(blow.signals) > 1 or promised
            if not told:
                return f"{blow}: what is saved is of step {step}, but it said: {ended}"
        return ""

    def outlive(self, case: Case, place: Path, blows: Sequence[Blow], reference: Reference) -> str:
        """What is wrong with the end after all blows; empty if nothing is."""
        ended = self.run(case, place)
        if ended.code or ended.hung:
            return f"the last process: {ended}"
        marks, expected = self.marks(case, place), reference.marks
        if not all(blow.deadly for blow in blows):  # saving on a signal leaves a checkpoint of its own
            marks, expected = without_older(marks), without_older(expected)
        return difference(marks, expected)


def fingerprint(place: Path) -> dict[str, str]:
    """SHA-256 of every file that equal results have in common; of the others, that they are there."""
    files = (
        path for path in sorted(place.rglob("*")) if path.is_file() and not any(map(path.match, LEFTOVERS))
    )
    return {
        str(path.relative_to(place)): "" if path.name in NOT_REPRODUCIBLE else sha256_of(path)
        for path in files
    }


def without_older(marks: dict[str, str]) -> dict[str, str]:
    """Without the checkpoints before the last one."""
    commits = {name: name.split("/")[2] for name in marks if name.startswith("run/checkpoints/step-")}
    last = max(commits.values(), default="")
    return {name: mark for name, mark in marks.items() if commits.get(name, last) == last}


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

    What happens in every commit is struck at its second occurrence, so that a process gets one commit further
    before the next blow falls. What is struck earlier in an undisturbed training comes earlier in a chain.
    """
    places, seen = [place_of(step) for step in steps], Counter[str]()
    counts, blows = Counter(places), list[Blow]()
    for place in places:
        seen[place] += 1
        if seen[place] == (at := 2 if counts[place] > 5 else 1):
            blows.append(Blow(place=place, at=at))
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
