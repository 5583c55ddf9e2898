"""A training that is killed, at any moment and as often as you like, ends as if it had not been.

The processes are real: forked from one that has imported everything, which makes a trial a second, and once
the interpreter itself. ``scripts/crash_test.py`` runs more of the same over every head and optimiser.
"""

import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_driver import (
    ENVIRONMENT,
    HEADS,
    OPTIMIZERS,
    Blow,
    Case,
    Lab,
    all_cases,
    chains_through_every_place,
    crash_lab,
    difference,
    fingerprint,
    kill_interpreter,
    random_blows,
)

pytestmark = pytest.mark.timeout(900)  # seconds; a test takes two, unless the machine is overloaded

CASE = Case("mos", "adam")
OTHERS = [Case("softmax", "sgd", flat=True, accumulate=2), Case("moss", "adamw", tokenizer="char")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with crash_lab(tmp_path_factory.mktemp("crash")) as lab:
        yield lab


def test_the_steps_of_a_commit_are_seen(lab: Lab) -> None:
    """Every file is written under another name and synced before its folder gets the final one."""
    steps = lab.reference(CASE).steps
    last = "checkpoints/step-00000012"
    rename = steps.index(f"rename {last}")
    written = [step.split()[1] for step in steps if step.startswith(f"write {last}.tmp/")]
    assert {Path(name).name for name in written} >= {
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    }
    assert Path(written[-1]).name == "manifest.json"
    assert all(steps.index(f"fsync {name}") < rename for name in written)
    assert steps[rename - 1] == f"fsync {last}.tmp"
    assert steps[rename + 1] == "fsync checkpoints"
    assert not [step for step in steps if step.startswith("open-file")], "files opened past os.open"


@pytest.mark.parametrize("number", range(10))
def test_killed_at_every_step_on_the_disk(lab: Lab, number: int) -> None:
    """SIGKILL at every kind of step there is: 80 of them, as ten trainings with many kills in a row."""
    chains = chains_through_every_place(lab.reference(CASE).steps, 10)
    assert sum(map(len, chains)) >= 60
    outcome = lab.trial(CASE, chains[number])
    assert not outcome.failure, outcome
    assert outcome.kills == len(chains[number]), outcome


def test_killed_when_all_but_the_tidying_up_is_done(lab: Lab) -> None:
    """After the last commit only pointers and pruning are left, and the next process has nothing to train."""
    steps = lab.reference(CASE).steps
    renamed = steps.index("rename checkpoints/step-00000012") + 1
    places = ("rename checkpoints/last.json", "rename checkpoints/best.json", "rmdir")
    numbers = [
        renamed + 1,
        *(steps.index(step, renamed) + 1 for step in steps[renamed:] if step.startswith(places)),
    ]
    assert len(numbers) >= 4
    outcomes = [lab.trial(CASE, [Blow(at=number)]) for number in numbers]
    assert not [outcome for outcome in outcomes if outcome.failure]
    assert all(outcome.kills for outcome in outcomes)


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.name)
def test_killed_at_random(lab: Lab, case: Case) -> None:
    rng = random.Random(case.name)
    outcomes = [lab.trial(case, random_blows(lab.reference(case), rng, 4)) for _ in range(2)]
    assert not [outcome for outcome in outcomes if outcome.failure]
    assert sum(outcome.kills for outcome in outcomes) >= 4, outcomes


def test_a_signal_saves_and_ends_with_75(lab: Lab) -> None:
    """While it trains, validates or saves: the state is saved, and the same command goes on from there."""
    commit = "checkpoints/step-N.tmp"
    blows = [
        Blow((signal.SIGTERM,), place="write metrics.jsonl", at=2),
        Blow((signal.SIGINT,), place=f"write-half {commit}/model.safetensors", at=1),
        Blow((signal.SIGHUP,), place="write timing.jsonl", at=1),
        Blow((signal.SIGUSR1,), place="rename checkpoints/step-N", at=1),
    ]
    outcome = lab.trial(CASE, blows)
    assert not outcome.failure, outcome
    assert outcome.interrupted == len(blows), outcome


def test_a_second_signal_ends_at_once_and_leaves_the_last_checkpoint(lab: Lab) -> None:
    blow = Blow(
        (signal.SIGINT, signal.SIGTERM), place="write-half checkpoints/step-N.tmp/model.safetensors", at=2
    )
    outcome = lab.trial(CASE, [blow, blow])
    assert not outcome.failure, outcome
    assert outcome.interrupted == 2
    assert {step.split()[0] for step in outcome.struck} == {"write-half"}, (
        "it went on after the second signal"
    )


def test_the_interpreter_itself_is_killed(lab: Lab) -> None:
    """The same without the fork server, from `python -m dialog` to the end."""
    reference = lab.reference(CASE)
    run = lab.folder / "interpreter"
    assert kill_interpreter(reference.config, run, 0.05) == -signal.SIGKILL
    command = [sys.executable, "-m", "dialog", "train", str(reference.config), "--run", str(run)]
    root = Path(__file__).resolve().parent.parent
    subprocess.run(command, check=True, cwd=root, capture_output=True, env=ENVIRONMENT | {"PATH": ""})
    assert not difference(fingerprint(run) | lab.check(run), reference.marks)


def test_the_comparison_notices_a_single_bit(lab: Lab, tmp_path: Path) -> None:
    reference = lab.reference(CASE)
    run = tmp_path / "run"
    shutil.copytree(lab.folder / f"{CASE.name}-1", run)
    assert not difference(fingerprint(run) | lab.check(run), reference.marks)
    file = run / "checkpoints/step-00000012/optimizer.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert "optimizer.safetensors" in difference(fingerprint(run), reference.marks)
    with pytest.raises(RuntimeError, match=r"optimizer\.safetensors"):
        lab.check(run)


def test_the_matrix_covers_every_head_and_optimizer() -> None:
    cases = all_cases()
    assert {(case.head, case.optimizer) for case in cases} == {(h, o) for h in HEADS for o in OPTIMIZERS}
    assert len({case.name for case in cases}) == len(cases)
    assert {case.flat for case in cases} == {True, False}
    assert {case.accumulate for case in cases} == {1, 2}
    assert len({case.tokenizer for case in cases}) == 4
