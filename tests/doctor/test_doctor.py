"""The doctor: it finds what is wrong, survives what kills its checks, and tells no private names."""

import importlib.metadata
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from dialog.doctor import dialog_trial
from lm.console.app import new_app, run_app
from lm.doctor import checks, cli, probe
from lm.doctor.checks import Diagnosis, careful, light_checks, private
from lm.errors import StorageError
from lm.heads.head import Head
from lm.language.doctor import lm_trial
from tests.support.command_lines import Outcome

FINE = """
import json, os
stray = b'\\n3\\nnull\\n"begin"\\n[{}]\\n{"check": "x"}\\n' + b"[" * 20_000 + b"\\nno json\\n\\xff\\n"
os.write(1, json.dumps({"begin": "torch"}).encode() + stray)
row = json.dumps({"check": "torch", "state": "STATE", "says": "x", "remedy": "do it"})
os.write(1, f"{row}\\n".encode())
"""


def states(found: list[Diagnosis]) -> dict[str, set[str]]:
    by_check: dict[str, set[str]] = {}
    for one in found:
        by_check.setdefault(one.check, set()).add(one.state)
    return by_check


@pytest.fixture
def module(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module for the doctor's process, and returns its name."""

    def write(code: str) -> str:
        folder = in_tmp / "modules"
        folder.mkdir()
        (folder / "patient.py").write_text(code)
        monkeypatch.syspath_prepend(folder)
        return "patient"

    return write


def doctor(module: str) -> Callable[[Any], NoReturn]:
    app = new_app("patients")
    app.command()(_other)
    cli.add_doctor(app, "dialog", module)
    return lambda arguments: run_app(app, "dialog", arguments)


def _other() -> None:
    """A second command, so that doctor has a name."""


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warning", 0), ("problem", 8)])
def test_only_a_problem_ends_with_its_code(
    state: str, code: int, module: Callable[[str], str], ending: Callable[..., Outcome]
) -> None:
    program = doctor(module(FINE.replace("STATE", state)))
    ended, out, _ = ending(program, "doctor", "--json", "d.json")
    told = json.loads(Path("d.json").read_text())
    assert ended == code
    assert told["healthy"] == (code == 0)
    assert "torch: do it" in out
    assert {"versions", "memory", "disk", "folders", "terminal", "torch"} <= {
        row["check"] for row in told["checks"]
    }


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "signal 4"),
        ("import nothing_like_this", "code 1: ModuleNotFoundError"),
        ("import time; time.sleep(60)", "takes more than 1 seconds"),
    ],
)
def test_a_process_that_dies_or_hangs_is_a_problem(
    code: str, says: str, module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "PROBE_SECONDS", 1 if "sleep" in code else 60)
    (found,) = cli._probed(module(code))
    assert (found.state, says in found.says) == ("problem", True), found


def test_a_check_that_fails_is_a_problem_of_its_own() -> None:
    def examine() -> Iterator[Diagnosis]:
        yield Diagnosis("x", "ok", "fine")
        raise RuntimeError(f"{os.path.expanduser('~')}/secret\x1b[31m")

    fine, found = careful("x", examine)
    assert (fine.state, found.state) == ("ok", "problem")
    assert "~/secret\\x1b" in found.says


def test_a_missing_folder_of_temporary_files_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", None)
        patched.setattr(tempfile, "_candidate_tempdir_list", list)
        found = [one for one in light_checks() if one.check in ("disk", "folders")]
    assert all("set TMPDIR" in one.remedy for one in found if one.remedy)
    for check in ("disk", "folders"):
        states = [(one.state, "working folder" in one.says) for one in found if one.check == check]
        assert states == [("ok", True), ("problem", False)]


def test_nothing_private_is_told(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = in_tmp / "anna-secret"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER", "anna-secret")
    monkeypatch.chdir(home)
    told = json.dumps([asdict(one) for one in light_checks()])
    assert "anna-secret" not in told
    assert private(f"{home}/runs") == "~/runs"

    def refuse(path: Path) -> NoReturn:
        raise StorageError(f"{path}: no locks available; choose another folder")

    elsewhere = in_tmp / "scratch" / "anna-secret"
    elsewhere.mkdir(parents=True)
    monkeypatch.setattr(checks, "temporary_folder", lambda: elsewhere)
    monkeypatch.setattr(checks, "_locks", refuse)
    found = list(checks._folders())
    assert {one.says.partition(": ")[2] for one in found} == {"no locks available"}


def test_locks_without_effect_are_a_problem(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {one.state for one in checks._folders()} == {"ok"}
    monkeypatch.setattr(checks, "held", lambda path: False)
    found = list(checks._folders())
    assert {one.state for one in found} == {"problem"}
    assert all("locks" in one.says and one.remedy for one in found)


def test_what_is_wrong_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(encoding="ascii", isatty=lambda: False))
    monkeypatch.setenv("OMP_NUM_THREADS", "4096")
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["torch>=99", "not-there>=1"])
    found = light_checks()
    assert states(found) == {
        **{"versions": {"problem"}, "processors": {"warning"}, "memory": {"ok"}},
        **{"disk": {"warning"}, "folders": {"problem"}, "terminal": {"warning"}},
    }
    assert all(one.remedy for one in found if one.state != "ok")
    assert "not-there" in found[0].says
    assert "needs 99" in found[0].says


def test_a_head_that_computes_something_else_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    assert next(probe._head()).state in ("ok", "warning")
    loss = Head.loss
    monkeypatch.setattr(Head, "loss", lambda *arguments: 1.01 * loss(*arguments))
    assert next(probe._head()).state == "problem"


@pytest.mark.parametrize("trial", [dialog_trial, lm_trial])
def test_a_training_resumes(trial: probe.TinyTraining) -> None:
    (found,) = probe._training(trial)
    assert found.state == "ok", found


def test_a_training_that_resumes_otherwise_is_a_problem() -> None:
    def forgetful(folder: Path, steps: int) -> None:
        lm_trial(folder, steps)
        if folder.name == "halves" and steps == 4:
            (folder / "checkpoints/step-00000004/model.safetensors").write_bytes(b"damaged")

    (found,) = probe._training(forgetful)
    assert (found.state, "differs" in found.says) == ("problem", True)
