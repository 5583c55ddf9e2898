"""Help of both command lines, their version, and completion in the shell."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from dialog.cli import app
from dialog.cli import main as dialog_main
from lm import __version__
from lm.cli import app as lm_app
from lm.cli import main as lm_main
from lm.console.app import TABLE_COLUMNS
from lm.console.options import config_completion
from lm.console.usage import ONLY
from tests.support.command_lines import COMMANDS, LM_COMMANDS, Outcome, cpu_seconds_since, leaves, python


def test_help_of_every_command_loads_nothing_heavy() -> None:
    program = f"""
import sys
from dialog.cli import main
from lm.cli import main as lm_main
commands = [(main, command) for command in ("", "analyze", *{COMMANDS})]
commands += [(lm_main, command) for command in ("", "analyze", *{LM_COMMANDS})]
for run, command in commands:
    try:
        run([*command.split(), "--help"])
    except SystemExit as ending:
        assert not ending.code, command
heavy = {{"torch", "numpy", "datasets", "nltk", "sacrebleu", "sentencepiece", "matplotlib", "pyarrow"}}
heavy |= {{"pandas", "optuna", "jinja2", "transformers"}}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    ended = python("-c", program)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("Usage: dialog") == len(COMMANDS) + 2
    assert ended.stdout.count("Usage: lm") == len(LM_COMMANDS) + 2


@pytest.mark.parametrize("module", ["dialog", "lm"])
def test_help_takes_hardly_more_than_a_second(module: str) -> None:
    """The best of three times: on a busy machine the same work takes half as long again."""
    for _ in range(3):
        before = os.times()
        ended = python("-m", module, "--help")
        seconds = cpu_seconds_since(before)
        assert f"Usage: {module} " in ended.stdout
        if seconds < 1.5:
            break
    assert seconds < 1.5
    assert "--install-completion" in ended.stdout


@pytest.mark.parametrize(("app", "names"), [(app, COMMANDS), (lm_app, LM_COMMANDS)])
def test_every_command_has_help_and_its_options_have_too(app: typer.Typer, names: tuple[str, ...]) -> None:
    commands = dict(leaves(typer.main.get_command(app)))
    assert tuple(sorted(commands)) == names
    for name, command in commands.items():
        assert command.help
        for parameter in command.params:
            assert getattr(parameter, "help", "") or parameter.name == "help", (name, parameter.name)


@pytest.fixture
def shown_at(ending: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], str]:
    """The help of a command in a terminal of so many columns; its form is chosen at import."""

    def show(command: str, columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        family, *name = command.split()
        if columns < TABLE_COLUMNS:
            ended = python("-m", family, *name, "--help")
            assert not ended.returncode
            return ended.stdout
        code, out, _ = ending({"dialog": dialog_main, "lm": lm_main}[family], *name, "--help")
        assert code == 0
        return out

    return show


@pytest.mark.parametrize(
    "command", ["dialog prepare", "lm prepare", "lm dynamic", "lm generate", "lm evaluate"]
)
def test_help_breaks_no_choice_at_80_columns(command: str, shown_at: Callable[[str, int], str]) -> None:
    shown = shown_at(command, 80)
    assert max(map(len, shown.splitlines())) <= 80
    cells = [cell for line in shown.splitlines() for cell in line.split()]
    assert all(cell.count("<") == cell.count(">") for cell in cells if "|" in cell)


@pytest.mark.parametrize(
    ("command", "columns"),
    [("dialog", 40), ("lm analyze", 40), ("lm tune", 40), ("dialog prepare", 60), ("lm dynamic", 80)],
)
def test_help_has_whole_names_of_options_in_a_narrow_terminal(
    command: str, columns: int, shown_at: Callable[[str, int], str]
) -> None:
    family, *name = command.split()
    shown = shown_at(command, columns)
    group = typer.main.get_command({"dialog": app, "lm": lm_app}[family])
    asked = group.commands[name[0]] if name else group  # type: ignore[attr-defined]
    words = set(re.findall(r"--[\w-]+", shown))
    assert {name for one in asked.params for name in one.opts if name.startswith("--")} <= words
    assert "[bold]" not in shown
    assert not re.search(r"\w\.\.\.$", shown, re.MULTILINE), "nor is the help of a command cut"


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
    assert complete_config("/tm") == ["/tmp/"]
    words = {
        "_DIALOG_COMPLETE": "complete_bash",
        "COMP_WORDS": "dialog train smalltalk_sig",
        "COMP_CWORD": "2",
    }
    assert python(
        "-m", "dialog", env=words | {"PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    ).stdout.split() == ["smalltalk_sigsoftmax"]


def test_commands_of_one_program_are_those_that_the_other_names() -> None:
    ours, others = set(LM_COMMANDS), set(COMMANDS)
    assert set(ONLY["language models"]) == {f"lm {name}" for name in ours - others}
    assert set(ONLY["dialog models"]) == {f"dialog {name}" for name in others - ours}
