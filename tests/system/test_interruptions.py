"""Commands that a signal interrupts: exit code 75, and what the same command does next."""

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import typer

from dialog.cli import app
from lm.cli import app as lm_app
from lm.console.app import Commands, new_app, run_app
from lm.ending import EarlyStop, again, take_command
from lm.stop import deferred_signals
from tests.support.command_lines import leaves


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
