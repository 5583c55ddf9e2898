"""Run folders: one writer, an unchanged config, signals that are obeyed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from lm.config.load import Resolved
from lm.disk.jsonfile import sealed
from lm.errors import ConfigError, DivergenceError, Interrupted, StorageError
from lm.runs.run import Run
from lm.stop import NOTICE, StopFlag
from tests.support import faults

RESUMABLE = frozenset({"train.max_steps"})


class Train(BaseModel):
    max_steps: int = 10
    lr: float = 0.1


class Config(BaseModel):
    name: str = "mos"
    sizes: tuple[int, ...] = (1, 2)
    train: Train = Train()


def resolved(name: str = "mos", max_steps: int = 10, lr: float = 0.1) -> Resolved[Config]:
    config = Config(name=name, train=Train(max_steps=max_steps, lr=lr))
    return Resolved(config, {"name": "default", "train.lr": "--set"})


def open_run(folder: Path, config: Resolved[Config] | None = None) -> Run:
    return Run.open(folder, config or resolved(), resumable_keys=RESUMABLE)


def saved(folder: Path) -> Config:
    return Config.model_validate(json.loads((folder / "config.json").read_text())["config"])


# --- the folder ---


def test_a_run_is_made_and_opened_again(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "new"
    for _ in range(2):
        with open_run(folder) as run:
            assert run.checkpoints.folder == folder / "checkpoints"
            run.metrics.append({"step": 1})
    assert saved(folder) == Config()
    assert (folder / "metrics.jsonl").read_text() == '{"step": 1}\n' * 2


def test_another_config_is_refused_with_both_values(tmp_path: Path) -> None:
    open_run(tmp_path).close()
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(ConfigError) as error:
        open_run(tmp_path, resolved(name="softmax\x1b", lr=0.2, max_steps=99))
    message = str(error.value)
    assert message.isprintable()
    assert 'name = "softmax' in message
    assert '(was "mos")' in message
    assert "train.lr = 0.2 (was 0.1)" in message
    assert "max_steps" not in message
    assert "--run" in message
    assert (tmp_path / "config.json").read_bytes() == before
    open_run(tmp_path).close()


def test_resumable_keys_may_change_and_are_saved(tmp_path: Path) -> None:
    open_run(tmp_path).close()
    open_run(tmp_path, resolved(max_steps=99)).close()
    assert saved(tmp_path).train.max_steps == 99


def edit_config(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((folder / "config.json").read_text())
    edit(document["config"])
    (folder / "config.json").write_text(json.dumps(sealed(document)))


def test_a_key_that_came_counts_as_having_had_its_default(tmp_path: Path) -> None:
    open_run(tmp_path).close()
    edit_config(tmp_path, lambda config: (config.pop("name"), config["train"].pop("lr")))
    with pytest.raises(ConfigError) as error:
        open_run(tmp_path, resolved(name="softmax"))
    assert 'name = "softmax" (was "mos")' in str(error.value)
    assert "train.lr" not in str(error.value)
    open_run(tmp_path).close()
    assert json.loads((tmp_path / "config.json").read_text())["config"] == Config().model_dump(mode="json")


def test_a_key_that_went_is_named(tmp_path: Path) -> None:
    open_run(tmp_path).close()
    edit_config(tmp_path, lambda config: config["train"].update(gone=3))
    with pytest.raises(ConfigError) as error:
        open_run(tmp_path)
    assert "train.gone = absent (was 3)" in str(error.value)


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(StorageError) as error:
        open_run(tmp_path)
    assert "thesis.tex" in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_inside_of_another_is_refused(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as run:
        run.checkpoints.commit(0, {}, {}, {})
    for inner in ("run/inner", "run/checkpoints/x/y"):
        with pytest.raises(StorageError, match=r"is inside of the run .*run; choose a folder beside it"):
            open_run(tmp_path / inner)
    assert not (tmp_path / "run/inner").exists()
    open_run(tmp_path / "beside").close()


@pytest.mark.parametrize("content", ["{}", "[1]", "not json", '{"config": 3, "provenance": {}}', ""])
def test_a_foreign_config_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(StorageError, match=r"config\.json"):
        open_run(tmp_path)


def test_a_file_or_a_dangling_link_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    for name in ("file", "file/below", "link", "nul\0", "a" * 300):
        with pytest.raises(StorageError):
            open_run(tmp_path / name)
    (tmp_path / "real").mkdir()
    (tmp_path / "good").symlink_to(tmp_path / "real")
    open_run(tmp_path / "good").close()
    assert (tmp_path / "real" / "config.json").exists()


@pytest.mark.parametrize("name", ["config.json", "lock", "metrics.jsonl", "timing.jsonl", "checkpoints"])
def test_links_inside_a_run_lead_nowhere(tmp_path: Path, name: str) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    open_run(run).close()
    if name == "checkpoints":
        (run / name).rmdir()
        (outside / "step-00000001.tmp").mkdir(parents=True)
    else:
        outside.write_bytes((run / name).read_bytes() or b"torn")
        (run / name).unlink()
    (run / name).symlink_to(outside)
    with pytest.raises(StorageError) as error:
        open_run(run)
    assert "symbolic link" in str(error.value)
    assert (outside / "step-00000001.tmp").exists() or outside.stat().st_size


def test_a_kill_while_a_run_is_made_does_no_harm(tmp_path: Path) -> None:
    number, killed = 0, True
    while killed:
        folder = tmp_path / str(number)
        killed = faults.kill_at(number, lambda folder=folder: open_run(folder).close())
        open_run(folder).close()
        assert saved(folder) == Config()
        assert {path.name for path in folder.iterdir()} == {
            "checkpoints",
            "config.json",
            "lock",
            "metrics.jsonl",
            "timing.jsonl",
        }
        number += 1
    assert number > 10


def test_opening_finishes_what_a_killed_writer_left(tmp_path: Path) -> None:
    open_run(tmp_path).close()
    (tmp_path / ".vocabulary.json.123.tmp").write_text("half")
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation/.test.json.123.tmp").write_text("half")
    (tmp_path / "checkpoints" / "step-00000009.tmp").mkdir(parents=True)
    open_run(tmp_path).close()
    assert not list(tmp_path.rglob("*.tmp"))


def test_preflight_names_both_sizes(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        run.preflight(1)
        with pytest.raises(StorageError, match=r"needs 1 EB, but only [\d.]+ [GT]B are free"):
            run.preflight(10**18)


def test_a_new_run_that_the_disk_refuses_leaves_no_config(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "corpus").mkdir(parents=True)
    with open_run(folder) as run, pytest.raises(StorageError, match="needs 1 EB"):
        run.preflight(10**18)
    assert sorted(path.name for path in folder.iterdir()) == ["corpus", "lock"]
    with open_run(folder):
        pass
    before = (folder / "config.json").read_bytes()
    with open_run(folder) as run, pytest.raises(StorageError, match="needs 1 EB"):
        run.preflight(10**18)
    assert (folder / "config.json").read_bytes() == before, "an earlier run stays"


# --- the lock ---


def test_a_second_writer_is_told_who_holds_the_run(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        run.metrics.append({"step": 1})
        with pytest.raises(StorageError, match=f"process {os.getpid()} on "):
            open_run(tmp_path)
        run.metrics.append({"step": 2})
    run.close()
    open_run(tmp_path).close()


def test_the_lock_ends_when_opening_fails(tmp_path: Path) -> None:
    open_run(tmp_path).close()
    with pytest.raises(ConfigError):
        open_run(tmp_path, resolved(name="other"))
    open_run(tmp_path).close()


HOLD = """
import sys, time
from pathlib import Path
from lm.runs.run import _take_lock
lock = _take_lock(Path(sys.argv[1])); print("held", flush=True); time.sleep(60)
"""


def test_the_lock_ends_with_a_killed_process(tmp_path: Path) -> None:
    open_run(tmp_path).close()
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StorageError, match=f"process {holder.pid} on "):
            open_run(tmp_path)
        holder.kill()
    open_run(tmp_path).close()


def test_handlers_are_given_back(tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]

    def signalled(error: Exception | None) -> None:
        with open_run(tmp_path) as run:
            assert not run.stop
            run.stop.check()
            signal.raise_signal(signal.SIGUSR1)
            assert run.stop
            if error:
                raise error

    with pytest.raises(Interrupted, match="SIGUSR1"):
        signalled(None)
    with pytest.raises(Interrupted, match="the training had ended; the same command shows how"):
        signalled(DivergenceError("diverged"))  # which ends a trial, and not its search
    with pytest.raises(StorageError, match="disk"):  # which the user has to know
        signalled(StorageError("disk"))
    assert [signal.getsignal(number) for number in numbers] == before


def test_the_first_signal_of_a_training_is_answered_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm.stop.ECHO_SECONDS", 60)  # a slow machine must not take the echo for a second one

    def signalled() -> None:
        with open_run(tmp_path):
            for _ in range(2):  # the echo of a request gets no second line
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        signalled()
    assert capfd.readouterr().err == f"{NOTICE}\n"
    with StopFlag() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        while not stop:
            time.sleep(0.001)
    assert not capfd.readouterr().err
