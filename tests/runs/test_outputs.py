"""No command writes its result over a file that it reads, by whatever name or link that is given."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dialog.cli import main as dialog
from dialog.config import DialogConfig
from lm.cli import main as lm
from lm.config.load import Resolved, save_config
from lm.errors import ConfigError
from lm.language.config import LmConfig
from lm.runs.outputs import require_apart, require_foreign

COMMANDS = [
    (lm, "score run text.txt --output {}"),
    (lm, "score run text.txt --json {}"),
    (lm, "evaluate run --data text.txt --json {}"),
    (lm, "evaluate run --json {}"),
    (lm, "dynamic run --data text.txt --json {}"),
    (lm, "dynamic run --json {}"),
    (lm, "analyze rank run --data text.txt --json {}"),
    (lm, "analyze divergence run --data text.txt --json {}"),
    (lm, "analyze components run --data text.txt --json {}"),
    (lm, "analyze temperature run --json {}"),
    (lm, "analyze histories run --data text.txt --json {}"),
    (lm, "analyze unargmaxable run --json {}"),
    (lm, "analyze gradient run --data text.txt --json {}"),
    (lm, "analyze examples run run --data text.txt --json {}"),
    (lm, "describe text.txt --json {}"),
    (lm, "tune ptb_mos --space text.txt --json {}"),
    (lm, "tune text.txt --picture {}"),
    (dialog, "evaluate talk --data text.txt --output {}"),
    (dialog, "evaluate talk --references text.txt --json {}"),
    (dialog, "evaluate talk --output {}"),
    (dialog, "score text.txt --json {}"),
    (dialog, "references --train text.txt --test no.txt --out {}"),
    (dialog, "references --train no.txt --test text.txt --out {}"),
]  # fmt: skip


EARLIER = {  # the beginning of a result, by the option that wrote it
    "lm --output": '{"line": 1, "log_probs": [-1.5]}\n',
    "lm --json": '{"command": "lm score", "versions": {}}\n',
    "lm --picture": "<?xml version='1.0'?>\n",
    "dialog --output": '{"dialog": 0, "turn": 1, "context": [], "references": [], "hypotheses": []}\n',
    "dialog --json": '{"command": "dialog score", "versions": {}}\n',
    "dialog --out": '[\n{"dialog": 0, "turn": 1, "context": [], "responses": []},\n',
}


FIRST = {command.split()[-2]: command for _, command in reversed(COMMANDS)}  # of each option


@pytest.mark.parametrize(
    ("main", "command", "name"),
    [
        *((main, command, "hard.txt") for main, command in COMMANDS),
        *((main, command, "text.txt") for main, command in COMMANDS if command in FIRST.values()),
        *((main, command, "folder/text.txt") for main, command in COMMANDS if command in FIRST.values()),
    ],
)
def test_what_is_read_is_not_written(
    ending: Callable[..., tuple[int, str, str]], in_tmp: Path, main: object, command: str, name: str
) -> None:
    text = EARLIER[f"{'lm' if main is lm else 'dialog'} {command.split()[-2]}"]
    Path("text.txt").write_text(text)
    Path("folder").symlink_to(".")
    os.link("text.txt", "hard.txt")
    for run, config in (("run", LmConfig()), ("talk", DialogConfig())):
        data = config.data.model_copy(update={"test": "text.txt"})
        Path(run).mkdir()
        save_config(Resolved(config.model_copy(update={"data": data}), {}), Path(run, "config.json"))
    code, out, err = ending(main, *command.format(name).split())
    assert (code, out) == (2, "")
    assert err == f"{name}: is also an input and would be overwritten; choose another file\n"
    assert Path("text.txt").read_text() == text


@pytest.mark.parametrize(("main", "command"), COMMANDS, ids=[command for _, command in COMMANDS])
def test_only_an_earlier_result_is_replaced(
    ending: Callable[..., tuple[int, str, str]], in_tmp: Path, main: object, command: str
) -> None:
    foreign = ["well so\n", "\n", "7\n", "[]", "{}\n", '{"text": "hi"}\n', "\0\xff", "[" * 5000]
    own = EARLIER[f"{'lm' if main is lm else 'dialog'} {command.split()[-2]}"]
    foreign += [text for text in EARLIER.values() if text.split(":")[0] != own.split(":")[0]]
    for text in foreign if command in FIRST.values() else foreign[-1:]:
        Path("keep.txt").write_text(text)
        code, out, err = ending(main, *command.format("keep.txt").split())
        assert (code, out) == (2, "")
        assert err == "keep.txt: exists and is no result of this command; choose another file\n"
        assert Path("keep.txt").read_text() == text
    for text in (own, ""):
        Path("keep.txt").write_text(text)
        assert "is no result of this command" not in ending(main, *command.format("keep.txt").split())[2]


def test_files_are_told_apart_by_what_they_are(in_tmp: Path) -> None:
    Path("text.txt").write_text("same")
    Path("copy.txt").write_text("same")
    Path("link.txt").symlink_to("text.txt")
    require_apart([Path("copy.txt"), Path("new.txt"), None], ["text.txt", "smalltalk:test", "a\0b", None])
    for written, read in (("text.txt", "link.txt"), ("link.txt", "text.txt")):
        with pytest.raises(ConfigError, match=f"^{written}: is also an input"):
            require_apart([Path(written)], [read])


def test_two_results_do_not_go_to_one_file(in_tmp: Path) -> None:
    (in_tmp / "link").symlink_to("result.json")
    for second in (Path("result.json"), Path("./result.json"), in_tmp / "result.json", Path("link")):
        with pytest.raises(ConfigError, match="two outputs"):
            require_apart([Path("result.json"), second], [])
    require_apart([Path("result.json"), Path("other.json"), None, None], [])


@pytest.mark.parametrize("mark", ["config.json", "manifest.json"])
def test_what_a_run_or_a_corpus_consists_of_is_no_place_for_a_result(tmp_path: Path, mark: str) -> None:
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    parts = (mark, "vocabulary.json", "checkpoints/step-00000001/state.json")
    for part in (*parts, "mine.json"):
        (tmp_path / part).write_text("{}")
    (tmp_path / "link.json").symlink_to("vocabulary.json")
    for part in (*parts, "link.json", "evaluation/mine.json"):
        with pytest.raises(ConfigError, match=r"belongs to .*; write to another file"):
            require_foreign(tmp_path / part)
    require_foreign(tmp_path / "mine.json")
    require_foreign(tmp_path / "evaluation.json")
    (tmp_path / mark).unlink()
    require_foreign(tmp_path / "vocabulary.json")
