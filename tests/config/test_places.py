"""Paths and names that users give for a config, and hints where they name something else."""

from pathlib import Path

import pytest

from lm.config.places import not_a_run, runs_in
from tests.support.config_files import load, rejection, write


def test_a_config_may_have_any_suffix(tmp_path: Path) -> None:
    assert load(write(tmp_path, 'extends = "smalltalk_mos"\n', "my.conf")).head.kind == "mos"
    assert "a file, not a config" in rejection(write(tmp_path, "hello there\n", "chat.txt"))


def test_commands_in_messages_quote_names(tmp_path: Path) -> None:
    told = rejection(write(tmp_path, "hello there\n", "my chat.txt"))
    assert f"`dialog train own_small --data '{tmp_path}/my chat.txt'`" in told


def test_a_config_of_another_program_is_no_run(tmp_path: Path) -> None:
    write(tmp_path, '{"model_type": "gpt2"}', "config.json")
    assert runs_in(tmp_path) == []
    told = (
        f"a model of transformers (gpt2), not a run; train on top of it with --set model.trunk=hf:{tmp_path}"
    )
    assert told in str(not_a_run(tmp_path, "dialog"))
    assert "a model of transformers (gpt2), not a config" in rejection(str(tmp_path))
    write(tmp_path, "{damaged", "config.json")
    assert runs_in(tmp_path) == [tmp_path]


def test_a_preset_whose_run_exists_is_told_by_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "`dialog train smalltalk_mos` makes" in str(not_a_run(Path("smalltalk_mos"), "dialog"))
    run = tmp_path / "runs/smalltalk_mos"
    run.mkdir(parents=True)
    write(run, '{"config": {}}', "config.json")
    assert "its run is runs/smalltalk_mos" in str(not_a_run(Path("smalltalk_mos"), "dialog"))


def test_a_preset_of_the_other_command_line_is_told() -> None:
    assert rejection("ptb_small_mos") == "ptb_small_mos: a preset of `lm`, not of `dialog`; use `lm`"


def test_missing_files_and_folders(tmp_path: Path) -> None:
    assert "no such file" in rejection(str(tmp_path / "none.toml"))
    assert "a folder" in rejection(str(tmp_path))
