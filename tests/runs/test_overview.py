"""Runs at a glance: what has become of them, and their curves as text."""

import csv
import fcntl
import json
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from subprocess import run as command
from types import SimpleNamespace
from typing import Any

import pytest

from dialog.cli import main
from lm.config.places import runs_in
from lm.console.app import show_training
from lm.console.curve import curve_lines
from lm.disk.filelock import held
from lm.disk.storage import remove_tree
from lm.errors import DivergenceError
from lm.runs.checkpoint import CheckpointStore
from lm.runs.overview import learning_curve, run_row
from tests.support.tiny_task import Faults, TinyTask, open_run, train

LIMITS = {"max_steps": 6, "validate_every": 2, "checkpoint_every": 2}


def state(run: Path) -> str:
    return str(run_row(run)["state"])


def test_every_state_that_a_run_can_be_in(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def killed(call: int) -> None:
        assert state(run) == "running"
        if call == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, LIMITS, task=TinyTask(Faults(on_loss=killed)))
    assert (state(run), run_row(run)["step"]) == ("interrupted", 4)
    train(run, LIMITS)
    row = run_row(run)
    assert (row["state"], row["step"], row["at step"]) == ("finished", 6, validations_best(run))
    assert row["best perplexity"] == min(value for _, value in learning_curve(run))
    assert row["MB"] > 0
    with open_run(tmp_path / "new"):
        pass
    assert state(tmp_path / "new") == "not begun"
    with pytest.raises(DivergenceError):
        train(tmp_path / "nan", {"max_steps": 30}, task=TinyTask(Faults(nan_loss=lambda call: True)))
    assert state(tmp_path / "nan") == "diverged"
    assert [path.name for path in runs_in(tmp_path)] == ["nan", "new", "run"]


def test_a_run_whose_checkpoints_were_removed_still_says_how_it_ended(tmp_path: Path) -> None:
    train(tmp_path / "run", LIMITS)
    remove_tree(tmp_path / "run" / "checkpoints")
    row = run_row(tmp_path / "run")
    assert (row["state"], row["step"]) == ("finished, without checkpoints", None)


def validations_best(run: Path) -> int:
    return min(learning_curve(run), key=lambda point: point[1])[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [("config.json", "{"), ("config.json", "[]"), ("step/state.json", "{}"), ("step/manifest.json", "{}")],
)
def test_a_damaged_run_is_listed_as_such(tmp_path: Path, name: str, text: str) -> None:
    train(tmp_path / "run", LIMITS)
    newest = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    folder = newest if name.startswith("step/") else tmp_path / "run"
    (folder / Path(name).name).write_text(text)
    assert state(tmp_path / "run").startswith("damaged: ")


def test_a_lost_config_is_mended_by_training(tmp_path: Path) -> None:
    train(tmp_path / "run", LIMITS)
    row = run_row(tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"seed": 1', '"seed": 2'))
    edited = run_row(tmp_path / "run")
    assert "edited or damaged since the training" in edited["state"]
    assert edited | {"state": "", "changed": ""} == row | {"state": "", "changed": ""}
    config.unlink()
    assert runs_in(tmp_path) == [tmp_path / "run"]
    assert state(tmp_path / "run").endswith("run the same training again, which mends it")
    train(tmp_path / "run", LIMITS)
    assert state(tmp_path / "run") == "finished"


@pytest.mark.parametrize(
    "line", ['{"split": "valid", "nll": 1.0, "step": Infinity}', "[" * 100_000, "1e", "5"]
)
def test_a_damaged_line_of_a_log_is_no_point_and_no_ending(tmp_path: Path, line: str) -> None:
    train(tmp_path, LIMITS)
    curve = learning_curve(tmp_path)
    for name in ("metrics.jsonl", "timing.jsonl"):
        with (tmp_path / name).open("a") as log:
            log.write(f"{line}\n")
    assert learning_curve(tmp_path) == curve
    assert state(tmp_path) == "interrupted", "a sitting without its last line was killed"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_steps": 9}, "interrupted"),
        ({"max_steps": 6}, "finished"),
        ({"patience": 3}, "interrupted"),
        ({"patience": 2}, "finished"),
        ({"stop_trigger": 2}, "interrupted"),
        ({"stop_trigger": 1}, "finished"),
        ({"max_minutes": 2.1}, "interrupted"),
        ({"max_minutes": 2.0}, "finished"),
    ],
)
def test_without_its_journal_the_limits_show_that_a_training_has_ended(
    tmp_path: Path, limits: dict[str, float], expected: str
) -> None:
    train(tmp_path, LIMITS)
    (tmp_path / "timing.jsonl").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    none = {"max_steps": 0, "max_epochs": 0, "patience": 0, "stop_trigger": 0, "max_minutes": 0.0}
    config["config"]["train"] |= none | limits
    (tmp_path / "config.json").write_text(json.dumps(config))
    store = CheckpointStore.of(tmp_path)
    progress = {"step": 6, "epoch": 0, "stale": 2, "best": [[1.0, 2]], "history": [1.0, 3.0, 2.0]}
    facts = {"progress": progress, "seconds": 120.0}
    store.commit(7, {"model": store.weights("step-6")}, facts, {})
    assert state(tmp_path) == expected


def test_curves_show_the_first_the_last_and_the_best(tmp_path: Path) -> None:
    points = [(250, 200.0), (500, 80.0), (750, 55.7), (1000, 90.0)]
    for unicode in (True, False):
        lines = curve_lines(points, unicode=unicode)
        text = "\n".join(lines)
        assert lines[0] == "validation perplexity, best 55.70 at update 750"
        assert text.isascii() != unicode
        assert text.count("•" if unicode else "*") == 3
        assert lines[1].startswith("200.00 ")
        assert lines[8].startswith(" 55.70 ")
        assert lines[8].rstrip().endswith("●" if unicode else "O")
        assert lines[-1].endswith("1,000 updates")
        assert max(map(len, lines)) <= 79
    many = [(100 * number, 6.76 if number == 69 else 6.8) for number in range(1, 101)]
    assert "●" in "".join(curve_lines(many, unicode=True)), "also beside others in one cell"
    assert curve_lines(points[:1], unicode=True) == []
    narrow = curve_lines(points, unicode=True, columns=24)
    assert max(map(len, narrow[1:])) <= 24
    assert curve_lines(points, unicode=True, columns=20) == []
    assert curve_lines([(0, math.inf), (1, 3.0)], unicode=True)
    assert learning_curve(tmp_path) == []


def test_a_finished_training_shows_its_curve_again(
    ending: Callable[..., Any],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tmp_path / "run"
    shown = []
    resolved: Any = SimpleNamespace(config=LIMITS, provenance={})
    trainer = SimpleNamespace(train=lambda resolved, folder, report: train(folder, resolved.config))
    monkeypatch.setitem(sys.modules, "trainer", trainer)
    for _ in range(2):
        show_training(run, resolved, "trainer")
        shown.append(capfd.readouterr().out.splitlines()[1:])
    assert shown[0][0].startswith("validation perplexity, best")
    assert shown[0] == shown[1]
    curve = "\n".join(shown[0])
    assert curve in ending(main, "runs", str(run))[1]
    assert f"\n```\n{curve}\n```\n" in ending(main, "runs", str(run), "--markdown")[1]


def test_the_command_lists_runs_without_torch(
    ending: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        train(tmp_path / "runs" / name, LIMITS)
    code, out, _ = ending(main, "runs", "--json", "r.json")
    assert code == 0
    assert out.count("finished") == 2
    assert "in runs/" in out
    rows = json.loads(Path("r.json").read_text())["runs"]
    assert [(row["run"], row["family"]) for row in rows] == [("runs/a", "dialog"), ("runs/b", "dialog")]
    code, out, err = ending(main, "runs", "--csv")
    assert (code, err) == (0, "")
    both = list(csv.DictReader(out.splitlines()))
    assert len(both) == 2
    assert all(abs(datetime.now(UTC) - datetime.fromisoformat(row["changed"])).days == 0 for row in both)
    code, out, err = ending(main, "runs", "runs/b", "--csv")
    assert list(csv.DictReader(out.splitlines())) == both[1:], "one run has the columns that several have"
    assert err.startswith("validation perplexity, best"), "the curve is no CSV"
    code, out, _ = ending(main, "runs", "runs/b")
    assert code == 0
    assert "validation perplexity, best" in out
    code, _, err = ending(main, "runs", "none")
    assert (code, err.count("\n")) == (4, 1)
    program = "import sys\nfrom dialog.cli import main\ntry:\n  main(['runs'])\nexcept SystemExit:\n  pass\n"
    program += "assert 'torch' not in sys.modules"
    assert command([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


def test_a_file_that_goes_while_it_is_looked_at_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "run", LIMITS)
    (tmp_path / "run" / "passing.tmp").write_text("x")
    lstat = Path.lstat

    def late(path: Path) -> os.stat_result:
        if path.name == "passing.tmp":
            path.unlink()
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", late)
    assert state(tmp_path / "run") == "finished"


def test_a_checkpoint_that_is_replaced_meanwhile_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    train(run, LIMITS)
    newest, newest_folder = run / "checkpoints/step-00000006", CheckpointStore.newest_folder

    def late(store: CheckpointStore) -> Path | None:
        found = newest_folder(store)
        if newest.exists():
            shutil.rmtree(newest)
        return found

    monkeypatch.setattr(CheckpointStore, "newest_folder", late)
    assert run_row(run)["step"] == 4


@pytest.mark.parametrize("newest", ["step-100000000", "step-00000006"])
def test_the_newest_step_is_that_of_the_store(newest: str, tmp_path: Path) -> None:
    """By its number, and not by its name; an ``.old`` one counts in the absence of the other alone."""
    run, folder = tmp_path / "run", tmp_path / "run/checkpoints"
    train(run, LIMITS)
    (folder / "step-00000006.old").mkdir()
    if newest == "step-100000000":
        (folder / newest).mkdir()
        assert state(run).startswith(f"damaged: {folder / newest}")
    else:
        assert (state(run), run_row(run)["step"]) == ("finished", 6)


def test_a_look_needs_no_right_to_write_and_refuses_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "run", LIMITS)
    lock, opened = tmp_path / "run/lock", os.open

    def read_only(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, mode, **more)

    with open(lock) as other, monkeypatch.context() as patch:
        fcntl.flock(other, fcntl.LOCK_SH)
        patch.setattr(os, "open", read_only)
        assert state(tmp_path / "run") == "finished"
    with open_run(tmp_path / "run"):
        assert held(lock)
    assert not held(lock)


def test_a_training_that_starts_during_a_look_is_not_refused(tmp_path: Path) -> None:
    with open_run(tmp_path):
        pass
    with open(tmp_path / "lock") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        end = threading.Thread(target=lambda: (time.sleep(0.1), fcntl.flock(look, fcntl.LOCK_UN)))
        end.start()
        with open_run(tmp_path):
            assert held(tmp_path / "lock")
        end.join()
