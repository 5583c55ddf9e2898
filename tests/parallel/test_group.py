"""Errors of one process among several: every rank ends, and one prints."""

import socket
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import nn

from lm.ending import report
from lm.engine.shared_saving import require_equal_weights
from lm.errors import ConfigError, DataError, HighrankError, OutOfMemory, WorkerError
from lm.launched import module_command, module_environment
from lm.parallel.board import Board
from lm.parallel.group import Group, process_group
from lm.parallel.launch import exit_code, without_option
from tests.support.ranks import together


def test_work_of_rank_0_reaches_all() -> None:
    assert together(3, lambda group: group.share(lambda: [group.rank, "done"])) == [[0, "done"]] * 3


def test_ranks_whose_launcher_was_killed_before_they_came_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after the hour that an evaluation waits: the store of the launcher is there before its ranks."""
    with socket.socket() as closed:
        closed.bind(("localhost", 0))
        port = closed.getsockname()[1]
    for name, value in {
        "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("lm.parallel.board.REACHED", timedelta(seconds=0.2))
    with pytest.raises(RuntimeError, match="timed out"):
        Board(0, 2, timedelta(minutes=60))


@pytest.mark.parametrize(
    ("error", "kind"),
    [(DataError("no file"), DataError), (MemoryError(), OutOfMemory), (KeyError("bug"), WorkerError)],
)
def test_an_error_on_one_rank_ends_all_and_is_printed_there(error: Exception, kind: type) -> None:
    def failing(group: Group) -> object:
        def work() -> int:
            if group.rank == 1:
                raise error
            return group.rank

        return group.every(work)

    results = together(3, failing)
    assert results[1] is error
    for rank in (0, 2):
        other = results[rank]
        assert isinstance(other, kind)
        assert isinstance(other, HighrankError)
        assert other.reported


def test_an_error_of_rank_0_is_printed_there() -> None:
    def work() -> None:
        raise ConfigError("wrong")

    first, *others = together(3, lambda group: group.share(work))
    assert isinstance(first, ConfigError)
    assert not first.reported
    assert [(str(other), getattr(other, "reported", None)) for other in others] == [("wrong", True)] * 2


def test_ranks_with_other_weights_are_named_with_the_tensor() -> None:
    def compare(group: Group) -> object:
        model = nn.Linear(2, 2)
        torch.nn.init.constant_(model.weight, 1.0)
        torch.nn.init.constant_(model.bias, float(group.rank == 2))
        return require_equal_weights(model, group)

    for error in together(3, compare):
        assert isinstance(error, WorkerError)
        assert "rank 2: bias differs" in str(error)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_fact_that_one_rank_lacks_is_named(rank: int) -> None:
    def compare(group: Group) -> object:
        return group.require_equal({"text": "a"} | ({"start": "b"} if group.rank == rank else {}))

    for error in together(3, compare):
        assert isinstance(error, WorkerError)
        assert f"rank {rank or 1}: its start differs" in str(error)


def test_what_another_rank_prints_is_not_printed_again(capsys: pytest.CaptureFixture[str]) -> None:
    error = DataError("no file")
    error.reported = True
    assert report(error) == 3
    assert not capsys.readouterr().err


def test_the_line_of_an_error_names_its_rank_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if all ranks have found that one of them differs."""
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "0")
    differing = together(3, lambda group: group.require_equal({"config": group.rank == 1}))[0]
    assert isinstance(differing, WorkerError)
    for error, said in ((DataError("no file"), "rank 0: no file"), (differing, "rank 1: its config differs")):
        report(error)
        line = capsys.readouterr().err
        assert line.startswith(said)
        assert line.count("rank") == 1 + line.count("rank 0's") + line.count("all ranks")


def test_an_environment_without_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match=r"RANK.*not in the environment"), process_group(1.0):
        pass


@pytest.mark.parametrize(("name", "value"), [("RANK", "x"), ("RANK", ""), ("WORLD_SIZE", "two")])
def test_an_environment_of_other_text_than_numbers_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    for known in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(known, "2")
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"{name} = '{value}': not a whole number"), process_group(1.0):
        pass


def test_a_port_that_no_machine_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "70000",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"^MASTER_PORT = 70000: not a port"), process_group(1.0):
        pass


def test_a_process_of_ours_imports_nothing_from_the_working_folder(in_tmp: Path) -> None:
    for name in ("lm.py", "typer.py"):
        (in_tmp / name).write_text("raise SystemExit(9)")
    ended = subprocess.run(module_command("lm", "--version"), env=module_environment(), check=False)
    assert ended.returncode == 0


def test_an_option_is_left_out_however_often_it_is_given() -> None:
    line = ["train", "c", "--processes", "2", "--run", "r", "--processes=3", "--processes", "4"]
    assert without_option(line, "--processes") == ["train", "c", "--run", "r"]


@pytest.mark.parametrize(
    ("ends", "code"),
    [([(1, 4), (0, 7)], 4), ([(1, -9), (0, 7)], 7), ([(0, 75), (1, 75)], 75), ([(0, -15), (1, 3)], 3)],
)
def test_the_code_is_that_of_the_first_rank_that_failed_by_itself(
    ends: list[tuple[int, int]], code: int
) -> None:
    assert exit_code(ends) == code


@pytest.mark.parametrize("others", [[], [(0, 75)], [(0, -9)]])
def test_a_killed_rank_is_named_where_others_were_interrupted(others: list[tuple[int, int]]) -> None:
    with pytest.raises(WorkerError, match="rank 1 was killed by SIGKILL"):
        exit_code([(1, -9), *others])
