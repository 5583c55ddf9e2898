"""Rows of processes that are struck: A1 to A5 and B by signals, A7 D1 D2 by shortages, A3 by power; K1."""

import errno
import json
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from tests.matrix.row import Case
from tests.matrix.row import Lab as RowLab
from tests.support.crash_commands import DialogPreparation, Result, SearchOfTwo
from tests.support.crash_dialog import DialogTraining, dialog_cases
from tests.support.crash_driver import Case as Command
from tests.support.crash_driver import (
    Lab,
    chains_through_every_place,
    crash_lab,
    difference,
    fingerprint,
    random_blows,
)
from tests.support.crash_lm import DynamicEvaluation, Finetuning, LmTraining, Preparation, lm_cases
from tests.support.crash_process import Blow, Ended
from tests.support.power import Change, Disk, load_changes

TRAINING = DialogTraining("mos", "adam")
LM = LmTraining("mos", "nt-asgd", accumulate=2)
TRAININGS: list[Command] = [TRAINING, LM, Finetuning()]
OTHERS: list[Command] = [
    Preparation(), Preparation(older=True), DialogPreparation(), DialogPreparation(bpe=True),
    Result("evaluate"), Result("average"), Result("sample"), Result("references"),
    Result("evaluate", "lm"), Result("average", "lm"), Result("temperature", "lm"),
    DynamicEvaluation(stale=True),
]  # fmt: skip
PHASES: list[Command] = [
    TRAINING, LM, Finetuning(), Preparation(), DialogPreparation(), Result("evaluate"), DynamicEvaluation(),
]  # fmt: skip
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
ERRORS = (errno.EIO, errno.EACCES, errno.EROFS, errno.EDQUOT, errno.ESTALE, errno.ENOSPC)
INTERNAL = ("Traceback", "internal error", "PanicException")

_LABS: dict[int, Lab] = {}  # the one lab of this process, which its rows share


@contextmanager
def shared_lab(folder: Path) -> Iterator[Lab]:
    """The lab of this process: what one row has trained the others need not train again."""
    if _LABS:
        yield next(iter(_LABS.values()))
        return
    with crash_lab(folder) as lab:
        _LABS[id(lab)] = lab
        try:
            yield lab
        finally:
            _LABS.clear()


def row_of(case: Callable[[Lab, random.Random, int], int]) -> RowLab:
    """The lab of a row whose cases need nothing but the shared one."""

    @contextmanager
    def lab_of(folder: Path) -> Iterator[Case]:
        with shared_lab(folder) as lab:
            yield lambda rng, index: case(lab, rng, index)

    return lab_of


def survived(lab: Lab, command: Command, blows: Sequence[Blow]) -> int:
    """A trial without failure; how many kills and interruptions it was."""
    outcome = lab.trial(command, blows)
    assert not outcome.failure, f"{outcome.case}: {outcome.blows} on {outcome.struck}: {outcome.failure}"
    return outcome.kills + outcome.interrupted


def kill_at_random(lab: Lab, rng: random.Random, index: int) -> int:
    """A1: one to three SIGKILLs in trainings of every head and optimiser."""
    commands = [case for case in (*dialog_cases(), *lm_cases()) if hasattr(case, "opened")]
    command = commands[index % len(commands)]
    return survived(lab, command, random_blows(lab.reference(command), rng, 1 + rng.randrange(3)))


def kill_at_every_step(lab: Lab, rng: random.Random, index: int) -> int:
    """A2: SIGKILL at every kind of change of the disk, in three kinds of training."""
    command, chain = TRAININGS[index % len(TRAININGS)], index // len(TRAININGS)
    chains = chains_through_every_place(lab.reference(command).steps, 10)
    return survived(lab, command, chains[chain]) if chain < len(chains) else 0


def kill_while_it_recovers(lab: Lab, rng: random.Random, index: int) -> int:
    """A4: a second and a third SIGKILL in the first steps of processes that resume."""
    command = TRAININGS[index % len(TRAININGS)]
    reference = lab.reference(command)
    first = Blow(at=rng.randint(len(reference.steps) // 3, len(reference.steps)))
    later = [Blow(at=rng.randint(1, 25)) for _ in range(2)]
    return survived(lab, command, [first, *later])


def kill_other_commands(lab: Lab, rng: random.Random, index: int) -> int:
    """A5: SIGKILL in preparing, tokenizer training, evaluating, decoding, averaging, searching."""
    commands = [*OTHERS, SearchOfTwo()]
    command = commands[index % len(commands)]
    if isinstance(command, SearchOfTwo):
        return kill_a_search(lab, command, rng)
    return survived(lab, command, random_blows(lab.reference(command), rng, 1))


def kill_a_search(lab: Lab, command: Command, rng: random.Random) -> int:
    """Its runs are those of a search that nothing has killed; its journal tells the time."""
    wanted = search_reference(lab, command)
    place = lab.new_place(command)
    ended = lab.run(command, place, Blow(at=rng.randint(1, 300)))
    assert ended.code in (0, -signal.SIGKILL), ended
    command.saved(lab, place)
    finished = lab.run(command, place)
    assert not finished.code, finished
    assert not difference(trials_of(place), wanted)
    shutil.rmtree(place)
    return int(ended.code != 0)


@lru_cache(maxsize=2)
def search_reference(lab: Lab, command: Command) -> dict[str, str]:
    place = lab.folder / f"{command.name}-whole"
    lab.finish(command, place)
    return trials_of(place)


def trials_of(place: Path) -> dict[str, str]:
    """What equal searches have in common."""
    marks = fingerprint(place)
    return {name: mark for name, mark in marks.items() if name.startswith("out/trials/")}


def signal_at_random(lab: Lab, rng: random.Random, index: int) -> int:
    """B: four signals in seven commands at random times; a quarter of them twice."""
    command = PHASES[index % len(PHASES)]
    number = SIGNALS[index // len(PHASES) % len(SIGNALS)]
    reference = lab.reference(command)
    if rng.random() < 0.25:
        step = rng.randint(1, len(reference.steps))
        return survived(lab, command, [Blow((number, rng.choice(SIGNALS)), at=step)])
    return survived(lab, command, [Blow((number,), after=max(1e-3, rng.uniform(0, reference.seconds)))])


@dataclass(frozen=True)
class Large(DialogTraining):
    """A training whose tensors are tens of megabytes."""

    head: str = "mos"

    @property
    def name(self) -> str:
        return "dialog-large"

    def tables(self, corpus: Path) -> dict[str, dict[str, object]]:
        tables = super().tables(corpus)
        tables["model"]["embedding_size"] = 400
        tables["decoder"]["hidden_size"] = 500
        tables["encoder"] |= {"utterance_size": 300, "context_size": 500}
        tables["train"] |= {"max_steps": 3, "validate_every": 2, "checkpoint_every": 1}
        return tables


def little_memory(lab: Lab, rng: random.Random, index: int) -> int:
    """A7: less memory than a training needs, by RLIMIT_AS; afterwards it is what it would have been."""
    return shortage(lab, Large(), Blow(memory=rng.randint(1 << 20, 400 << 20)))


def full_disk(lab: Lab, rng: random.Random, index: int) -> int:
    """D1: files that may not grow (RLIMIT_FSIZE), or a file system that is full, in trainings and others."""
    commands = [TRAINING, LM, DialogPreparation(), Preparation(), Result("evaluate")]
    command = commands[index % len(commands)]
    reference = lab.reference(command)
    sizes = [path.stat().st_size for path in reference.place.rglob("*") if path.is_file()]
    if index % 2:
        return shortage(lab, command, Blow(file_size=rng.randint(4096, max(4097, *sizes))))
    before = lab.new_place(command)
    taken = sum(path.stat().st_size + 4096 for path in before.rglob("*"))
    shutil.rmtree(before)
    return shortage(lab, command, Blow(disk=taken + rng.randint(8192, sum(sizes) + (1 << 20))))


def failing_disk(lab: Lab, rng: random.Random, index: int) -> int:
    """D2: one change of the disk fails: EIO, EACCES, EROFS, EDQUOT, ESTALE, ENOSPC."""
    commands = [TRAINING, LM, DialogPreparation(), Preparation(), DynamicEvaluation()]
    command = commands[index % len(commands)]
    step = rng.randint(1, len(lab.reference(command).steps))
    return shortage(lab, command, Blow(error=rng.choice(ERRORS), at=step))


def shortage(lab: Lab, command: Command, blow: Blow) -> int:
    """It ends with a line and nothing damaged; without the shortage the command ends as it always does."""
    reference, place = lab.reference(command), lab.new_place(command)
    ended = lab.run(command, place, blow)
    told_well(ended, blow)
    command.saved(lab, place)
    finished = lab.run(command, place)
    assert not finished.code, f"{blow}: {ended}; then: {finished}"
    wrong = difference(essence(lab.marks(command, place)), essence(reference.marks))
    assert not wrong, f"{blow}: {ended}; then {wrong}"
    shutil.rmtree(place)
    return 1


def told_well(ended: Ended, blow: Blow) -> None:
    """The process ended by itself, with a code of the table and no traceback."""
    assert not ended.hung, f"{blow}: {ended}"
    assert ended.code >= 0, f"{blow}: {ended}"
    assert not any(word in ended.output for word in INTERNAL), f"{blow}: {ended}"
    assert ended.code != 1, f"{blow}: {ended}"


def essence(marks: dict[str, str]) -> dict[str, str]:
    """Of a run its log and its last weights and optimiser: a checkpoint that failed is not among the best."""
    parts = [name for name in marks if name.startswith("run/checkpoints/step-")]
    last = max((name.split("/")[2] for name in parts), default="")
    kept = {f"run/checkpoints/{last}/{name}.safetensors" for name in ("model", "optimizer", "average", "rng")}
    others = {"step", "state_sha256"}
    return {
        name: mark
        for name, mark in marks.items()
        if name in kept or not (name.startswith("run/checkpoints/") or name in others)
    }


@contextmanager
def power_losses(folder: Path) -> Iterator[Case]:
    """A3: the power fails at any moment of a whole command; the command then ends as it always does."""
    commands = [
        TRAINING, LM, Preparation(), Preparation(older=True), DialogPreparation(),
        DynamicEvaluation(stale=True), SearchOfTwo(),
    ]  # fmt: skip
    disks: dict[Command, Disk] = {}
    with shared_lab(folder) as lab:

        def case(rng: random.Random, index: int) -> int:
            command = commands[index % len(commands)]
            if command not in disks:
                disks[command] = record(lab, command)
            lose_power(lab, command, disks[command], rng)
            return 1

        yield case


def record(lab: Lab, command: Command) -> Disk:
    """The disk under a whole command that nothing disturbs."""
    place = lab.new_place(command)
    before, trace = Path(f"{place}.start"), Path(f"{place}.trace")
    shutil.copytree(place, before)
    ended = lab.run(command, place, record=trace)
    assert not ended.code, ended
    shutil.rmtree(place)
    return Disk(before, load_changes(trace))


def lose_power(lab: Lab, command: Command, disk: Disk, rng: random.Random) -> None:
    """One state that is left: nothing in it is damaged, and the command goes on from it."""
    wanted = (
        search_reference(lab, command) if isinstance(command, SearchOfTwo) else lab.reference(command).marks
    )
    length, share = rng.randint(0, len(disk)), rng.choice((0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    lab.trials += 1
    place = lab.folder / f"trial-{lab.trials}"
    disk.state(length, place, rng, share)
    last = disk.changes[length - 1] if length else "nothing"
    where = f"{command.name} after {length} changes ({last!r:.150}), share {share}"
    try:
        saved = command.saved(lab, place)
    except RuntimeError as error:
        raise AssertionError(f"{where}: {error}") from error
    assert int(saved["step"]) >= promised(disk.changes[:length]), f"{where}: step {saved['step']} is left"
    ended = lab.run(command, place)
    assert not ended.code, f"{where}: {ended}"
    found = trials_of(place) if isinstance(command, SearchOfTwo) else lab.marks(command, place)
    assert not (wrong := difference(found, wanted)), f"{where}: {wrong}"
    shutil.rmtree(place)


def promised(changes: Sequence[Change]) -> int:
    """The step of a training that has to be there: its folder is synced when a commit is certain."""
    step = told = -1
    for change in changes:
        if found := re.fullmatch(r"run/checkpoints/step-(\d+)", change.target):
            step = int(found[1])
        elif change.kind == "sync" and change.path == "run/checkpoints":
            told = step
    return told


@dataclass(frozen=True)
class Logged(DialogTraining):
    """A training that looks at itself at other times."""

    log_every: int = 2
    checkpoint_every: int = 3
    keep_last: int = 2

    @property
    def name(self) -> str:
        return f"{super().name}-{self.log_every}-{self.checkpoint_every}-{self.keep_last}"

    def tables(self, corpus: Path) -> dict[str, dict[str, object]]:
        tables = super().tables(corpus)
        for key in ("log_every", "checkpoint_every", "keep_last"):
            tables["train"][key] = getattr(self, key)
        return tables


def same_seed(lab: Lab, rng: random.Random, index: int) -> int:
    """K1: the same seed twice, logging and saving at other times: the same weights."""
    cases = dialog_cases()
    case = cases[index % len(cases)]
    plain = {
        name: getattr(case, name)
        for name in ("head", "optimizer", "flat", "accumulate", "tokenizer", "gated")
    }
    twin = Logged(
        **plain,
        log_every=rng.randint(1, 5),
        checkpoint_every=rng.choice((1, 5, 7)),
        keep_last=rng.randint(1, 4),
    )
    reference, place = lab.reference(case), lab.folder / f"twin-{lab.trials}-{index}"
    lab.finish(twin, place)
    names = [f"run/checkpoints/step-00000012/{part}.safetensors" for part in ("model", "optimizer", "rng")]
    marks = fingerprint(place)
    assert [marks[name] for name in names] == [reference.marks[name] for name in names], twin.name
    shutil.rmtree(place)
    return 1


def golden(lab: Lab, rng: random.Random, index: int) -> int:
    """N: the learning curve of a head over 200 updates, twice, equal to the last bit."""
    heads = sorted({case.head for case in dialog_cases()})
    case = replace(Steady(), head=heads[index % len(heads)])
    places = [lab.folder / f"steady-{index}-{attempt}" for attempt in (1, 2)]
    for place in places:
        lab.finish(case, place)
    curves = [(place / "run/metrics.jsonl").read_bytes() for place in places]
    assert curves[0] == curves[1]
    assert json.loads(curves[0].splitlines()[-1])["step"] == 200
    for place in places:
        shutil.rmtree(place)
    return 1


@dataclass(frozen=True)
class Steady(DialogTraining):
    """200 updates, with every tenth in the log."""

    @property
    def name(self) -> str:
        return f"{super().name}-steady"

    def tables(self, corpus: Path) -> dict[str, dict[str, object]]:
        tables = super().tables(corpus)
        tables["train"] |= {"max_steps": 200, "log_every": 10, "validate_every": 50, "checkpoint_every": 50}
        return tables
