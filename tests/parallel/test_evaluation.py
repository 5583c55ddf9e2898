"""Evaluations by several processes write the bytes of one."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dialog.cli import main as dialog
from lm.cli import main as lm
from tests.support.evaluable_run import evaluable_run
from tests.support.forked import ranks
from tests.support.launching import command, ended
from tests.support.tiny_lm import write_run
from tests.support.tiny_talk import TALK, write_talk

Ending = Callable[..., tuple[int, str, str]]
MOS = {"kind": "mos", "components": 3, "tied": False}
COMMANDS = {
    "evaluate": ("run", "--temperature-search", "--mc-samples", "3"),
    "score": ("run", "test.txt"),
    "score --independent": ("run", "test.txt"),
    "analyze rank": ("run", "other"),
    "analyze divergence": ("run", "other"),
    "analyze components": ("run",),
}


def written(folder: Path) -> dict[str, bytes]:
    """All files but figures and weights."""
    skipped = {".png", ".svg", ".safetensors"}
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix not in skipped)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def written_alone_and_shared(
    folder: Path, ending: Ending, monkeypatch: pytest.MonkeyPatch, line: tuple[str, ...], processes: int = 2
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Files of two copies of a folder after a command by this process, and by several. Outputs agree."""
    alone, shared = folder.with_name("alone"), folder.with_name("shared")
    for copy in (alone, shared):
        shutil.copytree(folder, copy)
    main = {"lm": lm, "dialog": dialog}[line[0]]
    monkeypatch.chdir(alone)
    code, out, _ = ending(main, *line[1:])
    assert code == 0
    with ranks(shared, processes, *line) as started:
        assert started.ended().codes == [0] * processes, started.output
        assert not started.errors
        assert started.shown(1) == out, "only rank 0 prints"
    assert written(alone) != written(folder)
    return written(alone), written(shared)


QUICK = ("score", "analyze rank")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs of language models and their texts."""
    (tmp_path / "work").mkdir()
    for name in ("run", "other"):
        write_run(tmp_path / "work" / name, **MOS)
    return tmp_path / "work"


@pytest.mark.slow
def test_a_language_model_evaluated_by_processes_of_this_machine(
    folder: Path, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ("evaluate", "run", "--json", "found.json")
    monkeypatch.chdir(folder)
    end = ended(folder, command("lm", *line, "--processes", "2"))
    assert end.returncode == 0, end.stderr
    found = written(folder)
    code, out, _ = ending(lm, *line)
    assert (code, out, written(folder)) == (0, end.stdout, found)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]
)
def test_measures_by_three_processes(
    folder: Path, ending: Ending, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    line = ("lm", *name.split(), *COMMANDS[name], "--json", "found.json")
    alone, shared = written_alone_and_shared(folder, ending, monkeypatch, line, 3)
    assert shared == alone


def test_a_dialog_model_evaluated_by_two_processes(
    tmp_path: Path, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_talk(tmp_path / "work")
    monkeypatch.chdir(folder)
    settings = [part for setting in (*TALK, "decode.nbest=2") for part in ("--set", setting)]
    assert ending(dialog, "train", "smalltalk_mos", "--run", "run", *settings)[0] == 0
    line = ("dialog", "evaluate", "run", "--output", "hyps.jsonl", "--json", "found.json", "--batch", "4")
    alone, shared = written_alone_and_shared(folder, ending, monkeypatch, line)
    assert shared == alone


def test_ranks_of_dialog_models_by_two_processes(
    tmp_path: Path, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copytree(evaluable_run(folder), folder / "other")
    line = ("dialog", "analyze", "rank", "run", "other", "--json", "found.json")
    alone, shared = written_alone_and_shared(folder, ending, monkeypatch, line)
    assert shared == alone


def test_references_found_by_two_processes(
    tmp_path: Path, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ("dialog", "references", "--train", "talk.txt", "--test", "talk.txt", "--out", "found.json")
    alone, shared = written_alone_and_shared(write_talk(tmp_path / "work"), ending, monkeypatch, line)
    assert shared == alone
