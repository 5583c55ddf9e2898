"""The command lines: one-line errors with the documented exit codes, and results."""

import errno
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialog.cli import main as dialog_main
from dialog.config import DialogConfig
from lm.cli import main as lm_main
from lm.console import app
from lm.console.app import new_app, run_app
from lm.console.output import show, write_result
from lm.console.tables import Table
from lm.errors import (
    ConfigError,
    DataError,
    DivergenceError,
    HighrankError,
    Interrupted,
    OutOfMemory,
    StorageError,
    visible,
)
from tests.support.command_lines import FULL, Outcome, cpu_seconds_since, python


class PanicException(BaseException):
    """What a library in Rust raises: no Exception, and of no class that can be imported."""


class OwnError(RuntimeError):
    """What torch raises for a device: a class of its own."""


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (HighrankError("a"), 1, "a\n"),
        (ConfigError("x.toml:1: b"), 2, "x.toml:1: b\n"),
        (DataError("c\nd\x1b[2J"), 3, "c\\nd\\x1b[2J\n"),
        (StorageError("e"), 4, "e\n"),
        (DivergenceError("f"), 5, "f\n"),
        (Interrupted("g"), 75, "g\n"),
        (KeyboardInterrupt(), 75, "interrupted; run the same command again to start over\n"),
        (BrokenPipeError(), 0, ""),
        (OSError(errno.ENOSPC, "No space left on device", "f.txt"), 4, "f.txt: No space left on device\n"),
        (OSError(errno.ENOSPC, "No space left on device"), 4, FULL),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), 4, "Resource temporarily unavailable\n"),
        (MemoryError(), 6, f"{OutOfMemory()}\n"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), 6, f"{OutOfMemory()}\n"),
        (OwnError("CUDA error: out of memory"), 6, f"{OutOfMemory()}\n"),
        (RuntimeError("std::bad_alloc"), 6, f"{OutOfMemory()}\n"),
        (ImportError("x.so: failed to map segment from shared object"), 6, f"{OutOfMemory()}\n"),
        (OSError(errno.ENOMEM, "Cannot allocate memory", "x"), 6, f"{OutOfMemory()}\n"),
        (PanicException("PyObject pointer is null"), 6, f"{OutOfMemory()}\n"),
    ],
)
def test_every_failure_has_its_code_and_one_line(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = new_app("Fails.")

    @failing.command()
    def fail() -> None:
        raise error

    with pytest.raises(SystemExit) as ending:
        run_app(failing, "failing", ["fail"])
    assert int(ending.value.code or 0) == code
    assert capsys.readouterr().err == message


def test_a_failure_is_reported_after_its_memory_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what the causes of the error hold: a model that did not fit must leave room for the report."""
    failing = new_app("Fails.")
    large: list[weakref.ref[PanicException]] = []

    def hold() -> None:
        model = PanicException()
        large.append(weakref.ref(model))
        raise MemoryError

    @failing.command()
    def fail() -> None:
        model = PanicException()
        large.append(weakref.ref(model))
        try:
            hold()
        except MemoryError as error:
            raise RuntimeError("not loaded") from error

    def count_alive(error: BaseException) -> int:
        return sum(one() is not None for one in large)

    monkeypatch.setattr(app, "report", count_alive)
    with pytest.raises(SystemExit) as ending:
        run_app(failing, "failing", ["fail"])
    assert (ending.value.code, len(large)) == (0, 2)


@pytest.mark.parametrize("main", [dialog_main, lm_main])
def test_a_deleted_working_folder_is_named(
    main: Callable[..., object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SystemExit) as ending:
        main(["presets"])
    assert ending.value.code == StorageError.exit_code
    assert capsys.readouterr().err == "the working folder was deleted; go to another one with cd\n"


@pytest.mark.parametrize("arguments", [["fail"], ["--debug", "fail"], ["fail", "--debug"]])
def test_our_own_bugs_show_a_traceback_only_in_debug(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    failing = new_app("Fails.")

    @failing.command()
    def fail() -> None:
        raise KeyError("lost")

    with pytest.raises(SystemExit) as ending:
        run_app(failing, "failing", arguments)
    lines = capsys.readouterr().err.splitlines()
    assert ending.value.code == 1
    assert lines[-1].startswith("internal error: KeyError at test_cli.py:")
    assert ("Traceback (most recent call last):" in lines) == ("--debug" in arguments)
    assert len(lines) == 1 or "--debug" in arguments


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters()))
def test_a_message_is_one_printable_line(text: str) -> None:
    shown = visible(text)
    assert shown.isprintable()
    assert not text.isprintable() or shown == text


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["trian"], 2, "trian: no such command; did you mean train?; see `dialog --help`\n"),
        (["xyzzy"], 2, "xyzzy: no such command; see `dialog --help`\n"),
        (
            ["analyze", "gates", "runs/a"],
            2,
            "gates: no such command; only language models have it: `lm analyze gates`;"
            " see `dialog analyze --help`\n",
        ),
        (
            ["finetune", "runs/a"],
            2,
            "finetune: no such command; only language models have it: `lm finetune`; see `dialog --help`\n",
        ),
        (["--nope"], 2, "--nope: no such option; see `dialog --help`\n"),
        (["train"], 2, "CONFIG is missing; write the command as in `dialog train smalltalk_mos --set "),
        (["prepare", "x"], 2, "--out is missing; write the command as in `dialog prepare chat.txt "),
        (["show", "a", "b", "c"], 2, "too many arguments: b c; write the command as in `dialog show data"),
        (["train", "x", "chat.txt"], 2, "or `dialog train own_small --data chat.txt`; see `dialog train"),
        (["describe", "x", "--set", "a=1", "--set", "b=1", "--set", "a =2"], 2, "--set a: given twice; "),
        (["train", "x", "--data", "a", "--data=b"], 2, "--data: given twice; leave out one of the two\n"),
        (["show", "a", "--limit"], 2, "--limit: requires an argument; "),
        (["export", "a", "--out", "b"], 2, "--out: no such option; write the folder without an option;"),
        (["train", "x", "--sett", "y"], 2, "--sett: no such option; did you mean --set?; see "),
        (["evaluate", "none", "--limit", "0"], 2, "--limit: must be at least 1, got 0; see `dialog evaluate"),
        (["train", "x", "--processes", "2000"], 2, "--processes: must be at most 1024, got 2000;"),
        (["tune", "x", "--trials", "many"], 2, "--trials: must be an integer, got many; "),
        (["train", "smaltalk_mos"], 2, "smaltalk_mos: no such preset or file; did you mean smalltalk_mos?\n"),
        (["train", "smalltalk_mos", "--set", "train.sed=1"], 2, "train.sed; did you mean train.seed?\n"),
        (["describe", "smalltalk_mos", "--set", "head.kind=moos"], 2, "did you mean mos?\n"),
        (["train", "smalltalk_mos", "--set", "data.train=none.txt"], 3, "none.txt"),
        (["evaluate", "none"], 4, "none: no such run; check the path\n"),
        (["chat", "none"], 4, "none: no such run; check the path\n"),
        (["check", "none"], 4, "none: no such run; check the path\n"),
        (["runs", "none"], 4, "none: no such run; check the path\n"),
        (["runs"], 4, "runs: no such folder here; `dialog train CONFIG` makes a run there\n"),
        *(
            ([command, "smalltalk_mos"], 4, "smalltalk_mos: a preset, not a run; `dialog train smalltalk_mos")
            for command in ("evaluate", "chat", "check", "compare", "runs")
        ),
        (["compare", "none"], 4, "none: no such run"),
        (["score", "none.jsonl"], 3, "none.jsonl"),
        (["references", "--train", "none.txt", "--test", "none.txt", "--out", "x"], 3, "none.txt"),
        (["evaluate", "none", "--json", "x/e.json"], 4, "x/e.json: its folder does not exist; create it"),
        (["describe", "smalltalk_mos", "--json", "."], 4, ".: is a folder; name a file"),
        (["compare", "none", "--json", "x/c.json"], 4, "x/c.json: its folder does not exist; create it"),
        (["references", "--train", "y", "--test", "y", "--out", "x/y"], 4, "x/y: its folder does not exist"),
        (["prepare", "none.txt", "--out", "x"], 3, "none.txt"),
        (["demo", "--out", "/proc/x"], 4, "/proc: no file can be created there"),
        (["train", "smalltalk_mos", "--run", "/proc/x/y"], 4, "/proc: no file can be created there"),
        (["references", "--train", "y", "--test", "y", "--out", "/proc/y"], 4, "/proc: no file can be"),
        (["prepare", "none.txt", "--out", "x", "--on-bad-line", "eror"], 2, "did you mean error?; see"),
    ],
)  # fmt: skip
def test_mistakes(
    dialog: Callable[..., Outcome], in_tmp: Path, arguments: list[str], code: int, message: str
) -> None:
    found, out, err = dialog(*arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert "Traceback" not in err
    assert err.count("\n") == 1
    assert not (in_tmp / "x").exists()


def test_a_mistake_in_a_config_is_told_before_torch_is_loaded() -> None:
    program = """
import sys
from dialog.cli import main
for arguments in (["train", "smalltalk_mos", "--set", "x=1"], ["describe", "nope"], ["evaluate", "nope"]):
    try:
        main(arguments)
    except SystemExit as ending:
        assert ending.code in (2, 4)
assert "torch" not in sys.modules
"""
    before = os.times()
    ended = python("-c", program)
    assert cpu_seconds_since(before) < 1.5
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("\n") == 3


def test_a_closed_pipe_and_a_full_disk_under_stdout() -> None:
    for line in ("lm presets", "dialog --help", "lm analyze rank --help", "lm describe ptb_mos --toml"):
        ended = subprocess.run(
            f"{sys.executable} -m {line} | true; echo ${{PIPESTATUS[0]}}",
            shell=True, executable="/bin/bash", capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert (line, ended.stdout, ended.stderr) == (line, "0\n", "")
    if Path("/dev/full").exists():
        with open("/dev/full", "w") as full:
            for command in ("presets", "--version"):  # one that is written at the end, and one at once
                ended = subprocess.run(
                    [sys.executable, "-m", "lm", command],
                    stdout=full,
                    stderr=subprocess.PIPE,
                    text=True,
                    check=False,
                )
                assert (ended.returncode, ended.stderr) == (4, FULL)


def test_the_home_folder_is_known_also_after_an_equals_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("so it goes\n" * 30)
    with pytest.raises(SystemExit, match="0"):
        lm_main(["prepare", "a.txt", "--out=~/data/a"])
    assert (tmp_path / "data" / "a" / "train").is_dir()
    assert not (tmp_path / "~").exists()


def test_a_locale_without_unicode_escapes_what_it_cannot_show(tmp_path: Path) -> None:
    (tmp_path / "chat.txt").write_text("A: na\u00efve\nB: so\n\nA: x\nB: y\n", encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = python("-m", "dialog", "show", str(tmp_path / "chat.txt"), env=plain)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "A: na\\xefve" in ended.stdout


def test_tables_show_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show(Table("[b]T[/b]", [{"a": "[red]x[/nope]\x1b[2J", "n": 1234567}, {"a": "y" * 90, "n": None}]), "[/x]")
    out = capsys.readouterr().out
    assert "[b]T[/b]" in out
    assert "[red]x[/nope]\\x1b[2J" in out
    assert "1,234,567" in out
    assert "y" * 90 in out
    assert out.endswith("[/x]\n")
    assert "\x1b" not in out


def test_results_have_the_common_fields_and_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    write_result(None, {"x": 1})
    write_result(
        path, {"x": float("nan"), "y": [float("inf"), {"z": 2.5}], "device": "cuda"}, config=DialogConfig()
    )
    result = json.loads(path.read_text())
    assert {"command", "config", "versions", "seed", "device"} <= result.keys()
    assert (result["x"], result["y"], result["device"]) == (None, [None, {"z": 2.5}], "cuda")
    assert result["config"]["train"]["seed"] == 1
    assert {"highrank", "python", "torch"} <= result["versions"].keys()
