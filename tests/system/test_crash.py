"""What is killed, at any moment and as often as you like, ends as if it had not been.

The processes are real: forked from one that has imported everything, which makes a trial a second, and once
the interpreter itself. ``make nightly`` runs more of the same over every case of both programs.
"""

import json
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lm.stop import SIGNALS
from tests.support.crash_dialog import OPTIMIZERS as DIALOG_OPTIMIZERS
from tests.support.crash_dialog import DialogTraining, dialog_cases
from tests.support.crash_driver import (
    HEADS,
    Case,
    Lab,
    Outcome,
    chains_through_every_place,
    crash_lab,
    difference,
    fingerprint,
    random_blows,
)
from tests.support.crash_lm import (
    OPTIMIZERS,
    DynamicEvaluation,
    Finetuning,
    LmTraining,
    Preparation,
    lm_cases,
)
from tests.support.crash_process import ENVIRONMENT, ROOT, Blow, interpreter, kill_interpreter
from tests.support.crash_server import place_of
from tests.support.damage import rewrite_state

pytestmark = pytest.mark.timeout(900)  # seconds; a test takes two, unless the machine is overloaded

CASE = DialogTraining("mos", "adam")
OTHERS = [
    DialogTraining("softmax", "sgd", flat=True, accumulate=2),
    DialogTraining("moss", "adamw", tokenizer="char"),
]
LM = LmTraining("mos", "nt-asgd", accumulate=2)
LAMB = LmTraining("mos", "lamb", lamb=True)
COMMIT = "run/checkpoints/step-N"
EARLY = [
    Blow(place="write-half .out.tmp/.vocabulary.json.N.tmp", at=1),
    Blow(place="open-file .out.tmp/train/N.npy", at=3),
    Blow(place="fsync .out.tmp/valid/N.npy", at=1),
    Blow(place="rename .out.old", at=1),
    Blow(place="rename out", at=1),
]
LATE = [Blow(place=f"unlink .out.old/{name}", at=1) for name in ("report.json", "tokenizer.json")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with crash_lab(tmp_path_factory.mktemp("crash")) as lab:
        yield lab


def assert_survived(lab: Lab, case: Case, blows: list[Blow]) -> None:
    """All of the blows fall, and nothing of them is left in the end."""
    outcome = lab.trial(case, blows)
    assert not outcome.failure, outcome
    assert outcome.kills == len(blows), outcome


def kill_at_random(lab: Lab, case: Case, kills: int) -> list[Outcome]:
    """Trials until so many kills are reached: a blow that comes after the end does no harm."""
    rng, outcomes = random.Random(case.name), list[Outcome]()
    while sum(outcome.kills for outcome in outcomes) < kills and len(outcomes) < 2 * kills:
        outcomes.append(lab.trial(case, random_blows(lab.reference(case), rng, 4)))
    return outcomes


def records(lab: Lab, case: Case) -> list[dict[str, Any]]:
    lines = (lab.reference(case).place / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_the_steps_of_a_commit_are_seen(lab: Lab) -> None:
    """Every file is written under another name and synced before its folder gets the final one."""
    steps = lab.reference(CASE).steps
    last = "run/checkpoints/step-00000012"
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
    assert steps[rename + 1] == "fsync run/checkpoints"
    assert not [step for step in steps if step.startswith("open-file")], "files opened past os.open"


@pytest.mark.parametrize(
    "number", [5, *(pytest.param(number, marks=pytest.mark.slow) for number in (0, 1, 2, 3, 4, 6, 7, 8, 9))]
)
def test_killed_at_every_step_on_the_disk(lab: Lab, number: int) -> None:
    """SIGKILL at every kind of step there is: 80 of them, as ten trainings with many kills in a row."""
    chains = chains_through_every_place(lab.reference(CASE).steps, 10)
    assert sum(map(len, chains)) >= 60
    assert_survived(lab, CASE, chains[number])


def test_killed_when_all_but_the_tidying_up_is_done(lab: Lab) -> None:
    """After the last commit only pruning is left, and the next process has nothing to train."""
    steps = lab.reference(CASE).steps
    renamed = steps.index("rename run/checkpoints/step-00000012") + 1
    numbers = range(renamed + 1, len(steps) + 1)
    assert len(numbers) >= 10
    outcomes = [lab.trial(CASE, [Blow(at=number)]) for number in numbers]
    assert not [outcome for outcome in outcomes if outcome.failure]
    assert all(outcome.kills for outcome in outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.name)
def test_killed_at_random(lab: Lab, case: Case) -> None:
    outcomes = kill_at_random(lab, case, kills=6)
    assert not [outcome for outcome in outcomes if outcome.failure]
    assert sum(outcome.kills for outcome in outcomes) >= 6, outcomes


def test_a_signal_saves_and_ends_with_75(lab: Lab) -> None:
    """While it trains, validates or saves: the state is saved, and the same command goes on from there."""
    blows = [
        Blow((signal.SIGTERM,), place="write run/metrics.jsonl", at=2),
        Blow((signal.SIGINT,), place=f"write-half {COMMIT}.tmp/model.safetensors", at=1),
        Blow((signal.SIGHUP,), place="write run/timing.jsonl", at=1),
        Blow((signal.SIGUSR1,), place=f"rename {COMMIT}", at=1),
    ]
    outcome = lab.trial(CASE, blows)
    assert not outcome.failure, outcome
    assert outcome.interrupted == len(blows), outcome


@pytest.mark.parametrize(
    "case",
    [
        CASE, Preparation(),
        *(
            pytest.param(case, marks=pytest.mark.slow)
            for case in (OTHERS[0], LM, LAMB, Finetuning(), DynamicEvaluation(stale=True))
        ),
    ],
    ids=lambda case: case.name,
)  # fmt: skip
def test_signals_at_random_times(lab: Lab, case: Case) -> None:
    """All four, one after the other: each ends with 75 or comes too late, and nothing of them is left."""
    rng, seconds = random.Random(case.name), lab.reference(case).seconds
    outcome = lab.trial(case, [Blow((number,), after=rng.uniform(0.01, seconds)) for number in SIGNALS])
    assert not outcome.failure, outcome
    assert not outcome.kills


def test_a_second_signal_ends_at_once_and_leaves_the_last_checkpoint(lab: Lab) -> None:
    blow = Blow((signal.SIGINT, signal.SIGTERM), place=f"write-half {COMMIT}.tmp/model.safetensors", at=2)
    outcome = lab.trial(CASE, [blow, blow])
    assert not outcome.failure, outcome
    assert outcome.interrupted == 2
    assert {step.split()[0] for step in outcome.struck} == {"write-half"}, (
        "it went on after the second signal"
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", [CASE, LM], ids=lambda case: case.name)
def test_the_interpreter_itself_is_killed(lab: Lab, case: Case, tmp_path: Path) -> None:
    """The same without the fork server, from `python -m` to the end."""
    marks = lab.reference(case).marks
    command = [case.program, *case.arguments(lab)]
    assert kill_interpreter(command, tmp_path, 0.05) == -signal.SIGKILL
    environment = ENVIRONMENT | {"PATH": "", "PYTHONPATH": str(ROOT)}
    subprocess.run(interpreter(command), check=True, cwd=tmp_path, capture_output=True, env=environment)
    assert not difference(lab.marks(case, tmp_path), marks)


def test_the_comparison_notices_a_single_bit(lab: Lab, tmp_path: Path) -> None:
    reference = lab.reference(CASE)
    shutil.copytree(reference.place, tmp_path, dirs_exist_ok=True)
    assert not difference(lab.marks(CASE, tmp_path), reference.marks)
    file = tmp_path / "run/checkpoints/step-00000012/optimizer.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert "optimizer.safetensors" in difference(fingerprint(tmp_path), reference.marks)
    with pytest.raises(RuntimeError, match=r"optimizer\.safetensors"):
        CASE.saved(lab, tmp_path)


@pytest.mark.parametrize(
    "case", [LM, pytest.param(Finetuning(), marks=pytest.mark.slow)], ids=lambda case: case.name
)
def test_a_language_model_is_resumed_from_every_checkpoint(lab: Lab, case: Case) -> None:
    """Killed before every commit: in the middle of a shard, of a pass, before and after averaging begins."""
    commits = [step for step in lab.reference(case).steps if place_of(step) == f"rename {COMMIT}"]
    assert len(commits) >= 5
    assert_survived(
        lab, case, [Blow(place=f"rename {COMMIT}", at=min(number, 2)) for number, _ in enumerate(commits, 1)]
    )


@pytest.mark.parametrize("blows", [EARLY, LATE], ids=["before", "after"])
def test_a_corpus_is_absent_or_whole_however_its_preparation_is_killed(lab: Lab, blows: list[Blow]) -> None:
    """While it is built, and when it is in place and the older one goes."""
    assert_survived(lab, Preparation(older=True), blows)


def test_statistics_and_grid_go_on_where_they_were_killed(lab: Lab) -> None:
    """Also while statistics of another kind are thrown away for them."""
    cached = "run/dynamic/statistics/step-N"
    blows = [
        Blow(place="unlink run/dynamic/statistics.tmp/step-N/squares.safetensors", at=1),
        Blow(place=f"write-half {cached}.tmp/squares.safetensors", at=2),
        Blow(place=f"rename {cached}.tmp", at=1),
        Blow(place=f"unlink {cached}.tmp/squares.safetensors", at=2),
        Blow(place="write-half run/dynamic/.grid.json.N.tmp", at=2),
        Blow(place="rename run/evaluation/test.dynamic.grid.json", at=1),
    ]
    assert_survived(lab, DynamicEvaluation(stale=True), blows)


def test_a_signal_ends_what_is_no_training_with_75_and_a_promise_that_is_kept(lab: Lab) -> None:
    """It starts over, goes on, or is done: where a file is being published, the signal waits for that."""
    for case, places in {
        Preparation(): [f"open-file .out.tmp/{split}/N.npy" for split in ("train", "valid", "test")],
        DynamicEvaluation(): ["rename run/dynamic/statistics/step-N", "rename run/dynamic/grid.json"],
    }.items():
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        outcome = lab.trial(
            case, [Blow((number,), 1, place) for number, place in zip(numbers, places, strict=False)]
        )
        assert not outcome.failure, outcome
        assert outcome.interrupted == len(places), outcome


def test_finetuning_that_was_killed_early_notices_that_its_start_has_changed(
    lab: Lab, tmp_path: Path
) -> None:
    shutil.copytree(lab.reference(LM).place / "run", tmp_path / "base")
    command = ["lm", "finetune", "base", "--run", "run", "--set", "train.max_steps=1"]
    blow = Blow(place=f"rename {COMMIT}", at=1)
    assert lab.server.run(command, tmp_path, blow).code == -signal.SIGKILL
    shutil.copytree(tmp_path / "base", tmp_path / "before")
    checkpoints = tmp_path / "base/checkpoints"
    newest = checkpoints / "step-00000012"
    rewrite_state(newest, lambda state: state["progress"].update(best=[[0.1, 12]]))  # it went on
    ended = lab.server.run(command, tmp_path)
    assert "base: the best checkpoint changed since this run began" in ended.output, ended
    shutil.rmtree(tmp_path / "base")
    (tmp_path / "before").rename(tmp_path / "base")
    assert not lab.server.run(command, tmp_path).code


def test_the_language_models_do_what_they_are_there_for(lab: Lab) -> None:
    """Random windows of several shards, more than one pass; averaging that validation sets off; its end."""
    lines = records(lab, LM)
    shards = json.loads((lab.folder / "lm-corpus/out/train/split.json").read_text())["shards"]
    assert len(shards) >= 3
    (begun,) = (line["step"] for line in lines if line.get("event") == "averaging")
    assert 2 < begun < 12, "averaging begins in the middle, at a validation"
    assert {line["epoch"] for line in lines} == {1, 2}
    assert len({line["lr"] for line in lines if line["split"] == "train"}) > 3, "windows differ in length"
    (begun,) = (line["step"] for line in records(lab, LAMB) if line.get("event") == "averaging")
    assert begun < 10, "validation stalls before the latest step for averaging to begin"
    tuned = [line["step"] for line in records(lab, Finetuning()) if line["split"] == "valid"]
    assert tuned[0] == 0
    assert tuned[-1] < 40, "the trigger ended it, not train.max_steps"


@pytest.mark.slow
@pytest.mark.parametrize("case", lm_cases(), ids=lambda case: case.name)
def test_a_language_model_is_killed_at_random(lab: Lab, case: Case) -> None:
    outcomes = kill_at_random(lab, case, kills=6)
    assert not [outcome for outcome in outcomes if outcome.failure]
    assert sum(outcome.kills for outcome in outcomes) >= 6, outcomes


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [LM, Finetuning(), DynamicEvaluation(stale=True)], ids=lambda case: case.name
)
def test_a_language_model_is_killed_at_every_step_on_the_disk(lab: Lab, case: Case) -> None:
    for chain in chains_through_every_place(lab.reference(case).steps, 20):
        assert_survived(lab, case, chain)


@pytest.mark.slow
@pytest.mark.parametrize("older", [False, True])
def test_a_preparation_is_killed_at_every_step_on_the_disk(lab: Lab, older: bool) -> None:
    case = Preparation(older)
    outcomes = [lab.trial(case, [Blow(at=step + 1)]) for step in range(len(lab.reference(case).steps))]
    assert not [outcome for outcome in outcomes if outcome.failure]
    assert all(outcome.kills for outcome in outcomes)


def test_the_matrix_covers_every_head_and_optimizer() -> None:
    dialogs, models = dialog_cases(), [case for case in lm_cases() if isinstance(case, LmTraining)]
    assert {(case.head, case.optimizer) for case in dialogs} == {
        (head, optimizer) for head in HEADS for optimizer in DIALOG_OPTIMIZERS
    }
    assert {case.flat for case in dialogs} == {True, False}
    assert {case.gated for case in dialogs if case.flat} == {True, False}
    assert len({case.tokenizer for case in dialogs}) == 4
    assert {case.head for case in models} == HEADS.keys()
    assert {case.optimizer for case in models} == OPTIMIZERS.keys()
    for name in ("paper", "prepared", "lamb"):
        assert {getattr(case, name) for case in models} == {True, False}
    assert {case.accumulate for case in dialogs} == {case.accumulate for case in models} == {1, 2}
    names = [case.name for case in (*dialogs, *lm_cases())]
    assert len(set(names)) == len(names)
