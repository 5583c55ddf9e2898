"""The command lines: help without torch, one-line errors with the documented exit codes, results."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from dialog.cli import app
from dialog.config import DialogConfig
from lm import __version__
from lm.cli import app as lm_app
from lm.console.app import Commands, new_app, run_app, show, write_result
from lm.console.options import config_completion
from lm.console.tables import Table
from lm.ending import EarlyStop, again, take_command
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
from lm.stop import deferred_signals

COMMANDS = (
    "chat", "check", "compare", "demo", "describe", "distinct", "doctor", "evaluate", "export", "import",
    "prepare", "presets", "references", "report", "runs", "score", "serve", "show", "train", "tune",
)  # fmt: skip
LM_COMMANDS = (
    "analyze components", "analyze divergence", "analyze examples", "analyze gates",
    "analyze geometry", "analyze gradient", "analyze histories", "analyze rank", "analyze recovery",
    "analyze temperature", "analyze unargmaxable", "bottleneck", "check", "compare", "describe",
    "doctor", "dynamic", "evaluate", "export", "finetune", "generate", "import", "prepare",
    "presets", "report", "reverse-copy", "runs", "score", "serve", "train", "tune",
)  # fmt: skip
Outcome = tuple[int, str, str]


class PanicException(BaseException):
    """What a library in Rust raises: no Exception, and of no class that can be imported."""


def python(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | (env or {}),
    )


def cpu_seconds_since(before: os.times_result) -> float:
    """Of the processes that ended since: unlike wall time, it does not depend on what else is running."""
    now = os.times()
    return now.children_user + now.children_system - before.children_user - before.children_system


# Help, version, completion


def test_help_of_every_command_loads_nothing_heavy() -> None:
    program = f"""
import sys
from dialog.cli import main
from lm.cli import main as lm_main
commands = [(main, command) for command in ("", *{COMMANDS})]
commands += [(lm_main, command) for command in ("", "analyze", *{LM_COMMANDS})]
for run, command in commands:
    try:
        run([*command.split(), "--help"])
    except SystemExit as ending:
        assert not ending.code, command
heavy = {{"torch", "numpy", "datasets", "nltk", "sacrebleu", "sentencepiece", "matplotlib", "pyarrow"}}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    ended = python("-c", program)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("Usage: dialog") == len(COMMANDS) + 1
    assert ended.stdout.count("Usage: lm") == len(LM_COMMANDS) + 2


@pytest.mark.parametrize("module", ["dialog", "lm"])
def test_help_takes_hardly_more_than_a_second(module: str) -> None:
    """The best of three times: on a busy machine the same work takes half as long again."""
    seconds = []
    for _ in range(3):
        before = os.times()
        ended = python("-m", module, "--help")
        seconds.append(cpu_seconds_since(before))
        assert f"Usage: {module} " in ended.stdout
    assert min(seconds) < 1.5
    assert "--install-completion" in ended.stdout


def leaves(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The commands of a group by the words that call them, those of the groups inside it included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            assert command.help
            yield from leaves(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


@pytest.mark.parametrize(("app", "names"), [(app, COMMANDS), (lm_app, LM_COMMANDS)])
def test_every_command_has_help_and_its_options_have_too(app: typer.Typer, names: tuple[str, ...]) -> None:
    commands = dict(leaves(typer.main.get_command(app)))
    assert tuple(sorted(commands)) == names
    for name, command in commands.items():
        assert command.help
        for parameter in command.params:
            assert getattr(parameter, "help", "") or parameter.name == "help", (name, parameter.name)


def test_after_an_interruption_the_effect_of_the_same_command_is_told_once_it_is_known() -> None:
    def told(name: str) -> str:
        take_command(["lm", "--debug", *name.split()])
        return again().removeprefix("run the same command again").lstrip()

    take_command([])
    assert again() == "run the same command again"
    commands = {**dict(leaves(typer.main.get_command(app))), **dict(leaves(typer.main.get_command(lm_app)))}
    effects = {name: told(name) for name in commands}
    resumed = {name for name, effect in effects.items() if effect != "to start over"}
    assert resumed == {"bottleneck", "demo", "dynamic", "finetune", "reverse-copy", "train", "tune"}
    assert resumed >= {name for name, command in commands.items() if "same command" in command.help}
    assert {effects[name] for name in resumed} == {"to resume"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("section", [nullcontext, deferred_signals], ids=["anywhere", "deferred"])
def test_a_signal_ends_a_command_at_once_or_at_the_end_of_a_section(
    number: signal.Signals, section: Callable[[], AbstractContextManager[None]], capsys: Any
) -> None:
    probe = new_app("Probe.")

    @probe.command()
    def load() -> None:
        with section():
            signal.raise_signal(number)
            print("in the section")
        print("went on")

    with pytest.raises(SystemExit) as ending:
        run_app(probe, "probe", ["load"])
    assert ending.value.code == 75
    printed = capsys.readouterr()
    assert printed.out == ("in the section\n" if section is deferred_signals else "")
    assert printed.err.startswith("interrupted")
    assert printed.err.count("\n") == 1


def test_a_signal_before_the_command_line_is_read_ends_with_75(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def struck(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(Commands, "make_context", struck)
    with pytest.raises(SystemExit) as ending:
        run_app(new_app("Probe."), "probe", ["load"])
    assert ending.value.code == 75
    assert capsys.readouterr().err.startswith("interrupted")


@pytest.mark.parametrize("moment", ["install", "uninstall"])
def test_a_signal_beside_the_work_ends_with_75(
    moment: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when the handlers are there and the work has not begun, or has ended."""
    change = getattr(EarlyStop, moment)

    def struck(early: EarlyStop) -> None:
        if moment == "install":
            change(early)
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            if moment == "uninstall":
                change(early)

    monkeypatch.setattr(EarlyStop, moment, struck)
    with pytest.raises(SystemExit) as ending:
        run_app(new_app("Probe."), "probe", ["--help"])
    assert ending.value.code == 75
    assert capsys.readouterr().err.startswith("interrupted")


def test_version(dialog: Callable[..., Outcome]) -> None:
    assert dialog("--version") == (0, f"highrank {__version__}\n", "")


def test_the_shell_completes_presets_and_files(in_tmp: Path) -> None:
    (in_tmp / "small.toml").touch()
    (in_tmp / "sub").mkdir()
    (in_tmp / "sub" / "x.toml").touch()
    complete_config = config_completion("dialog")
    assert complete_config("smalltalk_mo") == ["smalltalk_moc", "smalltalk_mos", "smalltalk_moss"]
    assert {"smalltalk_mos", "small.toml"} <= set(complete_config("small"))
    assert complete_config("su") == ["sub/"]
    assert complete_config("sub/") == ["sub/x.toml"]
    words = {
        "_DIALOG_COMPLETE": "complete_bash",
        "COMP_WORDS": "dialog train smalltalk_sig",
        "COMP_CWORD": "2",
    }
    assert python(
        "-m", "dialog", env=words | {"PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    ).stdout.split() == ["smalltalk_sigsoftmax"]


# Exit codes and messages

FULL = "standard output: No space left on device; free some, or write elsewhere\n"


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
        (["--nope"], 2, "--nope: no such option; see `dialog --help`\n"),
        (["train"], 2, "CONFIG is missing; write the command as in `dialog train smalltalk_mos --set "),
        (["prepare", "x"], 2, "--out is missing; write the command as in `dialog prepare chat.txt "),
        (["show", "a", "b", "c"], 2, "too many arguments: b c; write the command as in `dialog show data"),
        (["train", "x", "chat.txt"], 2, "or `dialog train own_small --data chat.txt`; see `dialog train"),
        (["describe", "x", "--set", "a=1", "--set", "b=1", "--set", "a =2"], 2, "--set a: given twice; "),
        (["train", "x", "--data", "a", "--data=b"], 2, "--data: given twice; leave out one of the two\n"),
        (["show", "a", "--limit"], 2, "--limit: requires an argument; "),
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
        (["runs"], 4, "runs: holds no run yet; `dialog train CONFIG` makes one there\n"),
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


# Output


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


@pytest.mark.parametrize(
    "command", ["dialog prepare", "lm prepare", "lm dynamic", "lm generate", "lm evaluate"]
)
def test_help_breaks_no_choice_at_80_columns(command: str) -> None:
    family, name = command.split()
    narrow = os.environ | {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    arguments = [sys.executable, "-m", family, name, "--help"]
    ended = subprocess.run(arguments, env=narrow, capture_output=True, text=True, check=True)
    shown = ended.stdout
    assert max(map(len, shown.splitlines())) <= 80
    cells = [cell for line in shown.splitlines() for cell in line.split()]
    assert all(cell.count("<") == cell.count(">") for cell in cells if "|" in cell)
