"""A run whose files are not what was written: `check` finds it, and nothing computes with it."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from dialog.cli import main as dialog_main
from dialog.train import train
from dialog.trained import TrainedModel
from lm.cli import main as lm_main
from lm.disk.storage import remove_tree
from lm.engine.events import Event, Note, no_report
from lm.errors import ConfigError, StorageError
from lm.runs.check import check_run
from lm.runs.checkpoint import CheckpointStore
from tests.support.command_lines import Outcome
from tests.support.damage import (
    Damage,
    edits,
    flips,
    rewrite_state,
    run_files,
    wounds,
)
from tests.support.talk_run import TALK, attempted, found, settings, used
from tests.support.tiny_training import write_corpus


def survey(run: Path, whole: Path, damages: Iterator[Damage]) -> int:
    """Each damage is found by `check`, in a line, and refused or without effect; how many there were."""
    expected, count = used(run), 0
    for path, name, do in damages:
        do()
        lines = found(run)
        assert lines, f"{path.name}, {name}: check finds nothing"
        assert all(line.isprintable() for line in lines), lines
        assert attempted(run) in (expected, None), f"{path.name}, {name}: used, and other than it was"
        remove_tree(path)
        shutil.copy2(whole / path.relative_to(run), path)
        count += 1
    assert not found(run)
    return count


def test_lines_after_the_last_checkpoint_are_named(run: Path) -> None:
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as log:
        log.write("garbage\n")
    result = check_run(run)
    assert result.problems == []
    assert result.notes == [f"{run / 'metrics.jsonl'}: 8 bytes since step 4, which resuming drops"]


@pytest.mark.parametrize("emptied", [False, True])
def test_a_run_without_its_checkpoints_is_not_trained_anew(run: Path, emptied: bool) -> None:
    """Else its log would be emptied; every command that opens it says the same."""
    log = (run / "metrics.jsonl").read_bytes()
    remove_tree(run / "checkpoints")
    if emptied:
        (run / "checkpoints").mkdir()
    told = "checkpoints: no checkpoint of the training that was logged; restore it from a copy"
    for use in (
        lambda: train(settings(run.parent), run, no_report),
        lambda: check_run(run),
        lambda: TrainedModel.load(run),
    ):
        with pytest.raises(StorageError, match=told):
            use()
    assert (run / "metrics.jsonl").read_bytes() == log


def test_a_reader_that_leaves_hides_no_problem(
    run: Path, ending: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*parts: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("lm.console.commands.show", closed)
    assert ending(dialog_main, "check", str(run))[0] == 0
    (run / "vocabulary.json").write_bytes(b"{}")
    code, _, err = ending(dialog_main, "check", str(run))
    assert (code, "vocabulary.json: edited or damaged" in err) == (4, True)


def test_an_empty_log_is_as_good_as_none(run: Path) -> None:
    (run / "metrics.jsonl").write_bytes(b"")
    (problem,) = check_run(run).problems
    assert problem.endswith("metrics.jsonl: empty; training goes on without it, and the log begins anew")


def test_an_intact_run_has_no_problems(run: Path) -> None:
    result = check_run(run)
    assert (result.problems, result.notes) == ([], [])
    assert result.step == 4
    record = CheckpointStore(run / "checkpoints").open("last").facts["run"]
    assert set(record["files"]) == {"config.json", "data.json", "vocabulary.json", "tokenizer.json"}
    assert record["log"]["size"] == (run / "metrics.jsonl").stat().st_size


def test_flipped_bits(run: Path, trained: Path) -> None:
    """Row E1: any bit of any file, those that belong to no checkpoint among them."""
    choose = random.Random(1)
    damages = (damage for path in run_files(run) for damage in flips(path, 6, choose))
    assert survey(run, trained, damages) >= 90


def test_wounds(run: Path, trained: Path) -> None:
    """Row E2: cut, zeroed, missing, and what is no file, for every file."""
    choose = random.Random(2)
    damages = (damage for path in run_files(run) for damage in wounds(path, choose))
    unnoticed = ("missing", "cut by a byte")  # a result that is gone, or whose last newline is
    damages = (
        damage for damage in damages if damage.path.name != "talk.json" or damage.name not in unnoticed
    )
    assert survey(run, trained, damages) >= 100


def test_edits_that_look_right(run: Path, trained: Path) -> None:
    """Another beam, other words: what a reader without a record would believe."""
    assert survey(run, trained, edits(run)) >= 110


def test_an_edited_evaluation_is_not_compared(run: Path, ending: Callable[..., Outcome]) -> None:
    path = run / "evaluation/talk.json"
    text = path.read_text()
    assert ending(dialog_main, "compare", str(run), str(run))[0] == 0
    for name in ('"nll":[', '"tokens":['):
        at = text.index(name) + len(name)
        path.write_text(f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}")
        assert "talk.json: edited or damaged" in found(run)[0]
        code, _, err = ending(dialog_main, "compare", str(run), str(run))
        assert code == 4
        assert "talk.json: edited or damaged; run `dialog evaluate` again" in err
    record = json.loads(text)
    del record["sha256"]
    path.write_text(json.dumps(record))
    assert "talk.json: edited or damaged" in found(run)[0], "an evaluation without its hash"


def test_files_of_another_run(run: Path, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "talk.txt").write_text(TALK)
    train(settings(tmp_path, "data.context=2", "train.seed=2"), tmp_path / "other", no_report)

    def swaps() -> Iterator[Damage]:
        for path in run_files(run):
            other = tmp_path / "other" / path.relative_to(run)
            if other.is_file() and other.read_bytes() != path.read_bytes():
                yield Damage(path, "of another run", partial(shutil.copy, other, path))

    assert survey(run, trained, swaps()) >= 8


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("config.json", '"beam": 3', '"beam": 2', "decode.beam = 2 (was 3)"),
        ("config.json", '"seed": 1', '"seed": 7', "train.seed = 7 (was 1)"),
        ("vocabulary.json", '"hello"', '"hullo"', "vocabulary.json: edited or damaged"),
        ("data.json", '"codec_sha256": "', '"codec_sha256": "0', "data.json: edited or damaged"),
    ],
)
def test_every_command_that_opens_a_run_refuses_an_edited_one(
    ending: Callable[..., Outcome], run: Path, file: str, old: str, new: str, told: str
) -> None:
    path = run / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    commands = [["evaluate", str(run)], ["chat", str(run)], ["check", str(run)]]
    for command in commands:
        code, _, err = ending(dialog_main, *command)
        assert (code, err.count("\n")) == (4, 1), (command, err)
        assert told in err


LM = """
data = {train = "train.txt", valid = "valid.txt", test = "valid.txt"}
window = {length = 7}
model = {embedding_size = 4, hidden_sizes = [4]}
head = {kind = "softmax", embedding_size = 4, tied = true}
optim = {name = "sgd", lr = 1.0}
train = {batch_size = 2, max_steps = 3, validate_every = 1, device = "cpu"}
"""


def test_every_command_that_opens_a_language_model_refuses_an_edited_one(
    ending: Callable[..., Outcome], in_tmp: Path
) -> None:
    write_corpus(in_tmp, LM, train=9, valid=5, longest=7)
    assert ending(lm_main, "train", "tiny.toml", "--run", "run")[0] == 0
    commands = [
        ("evaluate", "run"), ("generate", "run"), ("score", "run", "valid.txt", "--output", "s.jsonl"),
        ("dynamic", "run"), ("finetune", "run", "--run", "tuned"), ("analyze", "rank", "run"),
        ("check", "run"), ("train", "tiny.toml", "--run", "other", "--set", "train.start_from=run"),
    ]  # fmt: skip
    for file, old, new in (
        ("config.json", '"tied": true', '"tied": false'),
        ("config.json", '"length": 7', '"lenght": 7'),
        ("vocabulary.json", '"mat"', '"hat"'),
    ):
        path = Path("run") / file
        whole = path.read_text()
        assert old in whole
        path.write_text(whole.replace(old, new))
        for command in commands:
            code, _, err = ending(lm_main, *command)
            assert code == 4, (command, err)
            assert f"{file}: edited or damaged since the training" in err
        path.write_text(whole)
    assert ending(lm_main, "check", "run")[0] == 0


def test_resuming_with_another_limit_is_no_damage(run: Path, trained: Path) -> None:
    train(settings(trained.parent, "train.max_steps=4", "decode.beam=5", "about=more"), run, no_report)
    result = check_run(run)
    assert result.problems == []
    assert "config.json: changed since step 4, by resuming the run" in result.notes[0]
    assert used(run)[0].decode.beam == 5
    train(settings(trained.parent, "train.max_steps=6", "decode.beam=5", "about=more"), run, no_report)
    result = check_run(run)
    assert (result.problems, result.notes, result.step) == ([], [], 6)


@pytest.mark.parametrize("damage", ["edited", "missing", "garbage", "of another run"])
def test_training_again_mends_the_config(run: Path, trained: Path, damage: str) -> None:
    path = run / "config.json"
    whole = path.read_text()
    if damage == "missing":
        path.unlink()
    elif damage == "of another run":
        train(settings(trained.parent, "data.context=2"), run.parent / "other", no_report)
        shutil.copy(run.parent / "other/config.json", path)
    else:
        path.write_text(
            "{" if damage == "garbage" else whole.replace('"context_size": 4', '"context_size": 5')
        )
    with pytest.raises(StorageError, match=r"config\.json: .*run the same training again, which mends it"):
        used(run)
    with pytest.raises(ConfigError, match=r"another config: train\.seed = 9 \(was 1\)"):
        train(settings(trained.parent, "train.seed=9"), run, no_report)
    train(settings(trained.parent), run, no_report)
    assert json.loads(path.read_text())["config"] == json.loads(whole)["config"]
    assert used(run)
    assert check_run(run).problems == []


def test_the_best_step_is_that_of_the_newest_checkpoint(run: Path) -> None:
    store = CheckpointStore(run / "checkpoints")
    steps = sorted(int(path.name[5:]) for path in store.folder.glob("step-*"))
    best = {step: [[0.1 * step, steps[0]], [0.2 * step, step]][:: 1 if step < 4 else -1] for step in steps}
    for step in steps:
        commit = store.folder / f"step-{step:08d}"
        rewrite_state(commit, lambda state, step=step: state["progress"].update(best=best[step]))
    assert store.steps("average-best") == [entry[1] for entry in best[steps[-1]]]
    shutil.rmtree(store.folder / f"step-{steps[0]:08d}")
    assert f"step {steps[0]} of the best is missing; restore it from a copy" in check_run(run).problems[0]


@pytest.mark.parametrize("name", ["data.json", "vocabulary.json", "tokenizer.json"])
def test_training_does_not_go_on_with_other_words(run: Path, trained: Path, name: str) -> None:
    """Without data.json nothing told whose words they are: it was written anew for the wrong ones."""
    before = sorted((run / "checkpoints").rglob("*"))
    (run / name).unlink()
    with pytest.raises(StorageError, match=rf"{name}: missing; restore it"):
        train(settings(trained.parent, "train.max_steps=9"), run, no_report)
    assert not (run / name).exists()
    assert sorted((run / "checkpoints").rglob("*")) == before


def test_a_newest_checkpoint_that_is_gone_is_named(run: Path) -> None:
    store = CheckpointStore(run / "checkpoints")
    newest = store.committed()[-1]
    shutil.rmtree(store.folder / f"step-{newest:08d}")
    told = f"no checkpoint of step {newest}, at which the training finished; restore it from a copy"
    assert told in check_run(run).problems[0]


def test_training_again_replaces_a_newest_checkpoint_that_is_gone(run: Path, trained: Path) -> None:
    expected = used(run)
    shutil.rmtree(run / "checkpoints/step-00000004")
    train(settings(trained.parent), run, no_report)
    assert not found(run)
    assert used(run) == expected


def test_a_best_checkpoint_that_is_gone_no_longer_counts_after_training(run: Path, trained: Path) -> None:
    """Also where the training has nothing left to do."""
    store, lines = CheckpointStore(run / "checkpoints"), list[str]()
    first, *_, newest = store.committed()
    best = [[0.1, first], [0.2, newest]]
    rewrite_state(store.folder / f"step-{newest:08d}", lambda state: state["progress"].update(best=best))
    assert store.steps("average-best") == [first, newest]
    shutil.rmtree(store.folder / f"step-{first:08d}")
    assert f"step {first} of the best is missing" in check_run(run).problems[0]

    def report(event: Event) -> None:
        if isinstance(event, Note):
            lines.append(event.line)

    train(settings(trained.parent), run, report)
    assert f"warning: step {first} of the best is missing, and no longer counts" in lines
    assert not found(run)
    assert store.steps("average-best") == [newest]


def test_a_lost_list_of_best_checkpoints_stays_a_problem(run: Path, trained: Path) -> None:
    """An empty list would say that no validation has been, or that the training has diverged."""
    store = CheckpointStore(run / "checkpoints")
    first, *_, newest = store.committed()
    best = [[0.1, first]]
    rewrite_state(store.folder / f"step-{newest:08d}", lambda state: state["progress"].update(best=best))
    shutil.rmtree(store.folder / f"step-{first:08d}")
    for _ in range(2):
        with pytest.raises(
            StorageError, match=f"step {first} of the best is missing; restore it from a copy"
        ):
            train(settings(trained.parent), run, no_report)
        assert f"step {first} of the best is missing" in check_run(run).problems[0]
