"""`lm tune` as a user has it: a search of a tiny language model, its table, its best config."""

import csv
import json
import os
import re
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lm import libraries
from lm.cli import main
from tests.support.command_lines import Outcome
from tests.support.outcomes import files_below
from tests.support.tiny_lm import text_of

TINY = """
[data]
train = "text.txt"
valid = "text.txt"
test = "text.txt"
[window]
length = 7
[model]
embedding_size = 4
hidden_sizes = [4]
[optim]
name = "sgd"
lr = 1.0
[train]
max_steps = 2
batch_size = 4
device = "cpu"
"""
SPACE = """[space]
"optim.lr" = {low = 0.1, high = 10, log = true}
"model.input_dropout" = {low = 0, high = 0.5}
"""


@pytest.fixture
def lm(ending: Callable[..., Outcome], in_tmp: Path) -> Callable[..., Outcome]:
    """Runs ``lm`` in this process, in a folder with a text, a config and a space."""
    (in_tmp / "text.txt").write_text(text_of(40, 1), encoding="utf-8")
    (in_tmp / "tiny.toml").write_text(TINY)
    (in_tmp / "s.toml").write_text(SPACE)
    return partial(ending, main)


def test_a_search_its_table_and_its_best_config(lm: Callable[..., Outcome], in_tmp: Path) -> None:
    pytest.importorskip("optuna")
    command = ("tune", "tiny.toml", "--space", "s.toml", "--trials", "2", "--set", "train.seed=3")
    code, out, err = lm(*command, "--json", "a.json", "--picture", "a.svg")
    assert (code, "best: trial" in out, "trial 1 finished" in err) == (0, True, True)
    result = json.loads((in_tmp / "a.json").read_text())
    assert [row["state"] for row in result["trials"]] == ["finished"] * 2
    assert result["config"]["train"]["seed"] == 3
    assert (in_tmp / "a.svg").read_text().startswith("<?xml")

    code, out_again, err = lm("tune", "tiny.toml", "--show", "--json", "b.json")
    shown: dict[str, Any] = json.loads((in_tmp / "b.json").read_text())
    assert (code, out_again, err) == (0, out, "")
    assert shown | {"command": 0} == result | {"command": 0}

    code, table, _ = lm("tune", "tiny.toml", "--show", "--csv")
    rows = list(csv.DictReader(table.splitlines()))
    for row, trial in zip(rows, result["trials"], strict=True):
        assert {key: float(row[key]) for key in trial["values"]} == trial["values"]

    other = ("--out", "other", "--json", "c.json")
    assert lm(*command, *other)[0] == 0
    assert json.loads((in_tmp / "c.json").read_text())["trials"] == result["trials"]

    best = f"runs/tune/tiny/trials/{result['best']}"
    assert lm("train", "runs/tune/tiny/best.toml", "--run", "again")[0] == 0
    assert (in_tmp / "again/metrics.jsonl").read_bytes() == (in_tmp / best / "metrics.jsonl").read_bytes()
    assert lm("evaluate", best)[0] == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "--space is missing; name a file or one of lstm, lstm_char"),
        (("--show", "--no-prune"), "--prune: has no effect with --show; leave it out"),
        (("--space", "none.toml"), "--space none.toml: no such space or file; the spaces of `lm` are"),
        (
            ("--space", "s.toml", "--set", "optim.lr=1"),
            "s.toml:2: optim.lr is both in the space and in --set",
        ),
        (("--space", "s.toml", "--set", "train.max_steps=0"), "training would never end"),
        (("--space", "s.toml", "--minutes", "nan"), "--minutes: must be at least 0, got nan"),
        (("--space", "s.toml", "--workers", "100000"), "--workers 100000: too many for"),
        (
            ("--space", "s.toml", "--set", "optim.plateau_factor=0.3"),
            "--set optim.plateau_factor: has no effect with optim.schedule",
        ),
    ],
)
def test_usage_errors_leave_nothing(
    lm: Callable[..., Outcome], in_tmp: Path, options: tuple[str, ...], told: str
) -> None:
    code, _, err = lm("tune", "tiny.toml", *options)
    assert (code, err.count("\n"), told in err) == (2, 1, True), err
    assert not (in_tmp / "runs").exists()


def test_a_missing_text_leaves_nothing(lm: Callable[..., Outcome], in_tmp: Path) -> None:
    code, _, err = lm("tune", "tiny.toml", "--space", "s.toml", "--set", "data.train=txet.txt")
    assert (code, err.count("\n"), "txet.txt: no such file" in err) == (3, 1, True), err
    assert not (in_tmp / "runs").exists()


def test_a_text_that_the_best_config_could_not_name_is_refused(
    lm: Callable[..., Outcome], in_tmp: Path
) -> None:
    config = os.fsdecode(b"bad\xe9.toml")
    Path(config).write_bytes((in_tmp / "tiny.toml").read_bytes())
    code, _, err = lm("tune", config, "--space", "s.toml", "--out", "runs")
    assert (code, "not UTF-8, which TOML needs; rename the file" in err) == (2, True), err
    name = os.fsdecode(b"bad\xe9.txt")
    Path(name).write_bytes((in_tmp / "text.txt").read_bytes())
    code, _, err = lm("tune", "tiny.toml", "--space", "s.toml", "--set", f"data.train={name}")
    assert (code, "not UTF-8, which TOML needs; rename the file" in err) == (2, True), err
    assert not (in_tmp / "runs").exists()


def test_what_is_searched_is_read_by_something(lm: Callable[..., Outcome], in_tmp: Path) -> None:
    """Momentum has no effect with Adam, unless the optimiser is searched, too."""
    momentum = '"optim.momentum" = {low = 0, high = 0.9}\n'
    (in_tmp / "s.toml").write_text(f"[space]\n{momentum}")
    command = ("tune", "tiny.toml", "--space", "s.toml", "--trials", "1", "--set", "optim.lr=0.01")
    code, _, err = lm(*command, "--set", "optim.name=adamw")
    assert (code, err.count("\n")) == (2, 1)
    assert "s.toml:2: optim.momentum: has no effect with optim.name = adamw" in err
    (in_tmp / "s.toml").write_text(f'[space]\n{momentum}"optim.name" = {{choices = ["sgd", "adamw"]}}\n')
    assert lm(*command)[0] == 0
    (in_tmp / "s.toml").write_text('[space]\n"optim.name" = {choices = ["sgd", "adamw"]}\n')
    assert lm(*command, "--set", "optim.momentum=0.5", "--out", "given")[0] == 0


def test_looking_at_a_search_changes_nothing(
    lm: Callable[..., Outcome], in_tmp: Path, unwritable: Callable[[Path], None]
) -> None:
    pytest.importorskip("optuna")
    lm("tune", "tiny.toml", "--space", "s.toml", "--trials", "1")
    folder = in_tmp / "runs/tune/tiny"
    with (folder / "journal.log").open("ab") as journal:
        journal.write(b'{"op_code": 8, "wor')
    before = files_below(folder)
    unwritable(folder)
    for named in ((), ("--out", str(folder))):
        code, out, err = lm("tune", "tiny.toml", "--show", *named)
        assert (code, "best: trial 0" in out) == (0, True), err
    assert files_below(folder) == before


def test_a_search_is_not_shown_without_a_folder_of_temporary_files(
    lm: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    lm("tune", "tiny.toml", "--space", "s.toml", "--trials", "1")
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", None)
        patched.setattr(tempfile, "_candidate_tempdir_list", list)
        code, _, err = lm("tune", "tiny.toml", "--show")
    told = "temporary files: no folder to write them to; set TMPDIR to a folder that you may write to\n"
    assert (code, err) == (4, told)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("journal.log", '"params"', '"parims"'),
        ("journal.log", '"op_code":8', '"op_code":99'),
        ("search.json", '"low":0.1', '"low":0.7'),
        ("search.json", '"log":true', '"log":[]'),
    ],
)
def test_damaged_files_of_a_search_are_told_in_one_line(
    lm: Callable[..., Outcome], in_tmp: Path, name: str, old: str, new: str
) -> None:
    pytest.importorskip("optuna")
    lm("tune", "tiny.toml", "--space", "s.toml", "--trials", "1")
    path = in_tmp / "runs/tune/tiny" / name
    text = re.sub(r'": ', '":', path.read_text())
    assert old in text
    path.write_text(text.replace(old, new))
    code, _, err = lm("tune", "tiny.toml", "--show")
    assert (code, err.count("\n")) == (4, 1), err
    assert f"{name}: damaged or foreign" in err


def test_without_optuna_one_line_says_how_to_get_it(
    lm: Callable[..., Outcome], in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "installed_version", lambda name: "")
    code, _, err = lm("tune", "tiny.toml", "--space", "s.toml")
    remedy = "install it with pip install -e '.[tune]' in the folder of Highrank"
    assert (code, err) == (2, f"tune needs optuna; {remedy}\n")
    assert not (in_tmp / "runs").exists()


def test_showing_a_search_that_was_not_begun(lm: Callable[..., Outcome]) -> None:
    pytest.importorskip("optuna")
    code, _, err = lm("tune", "tiny.toml", "--show")
    assert (code, "runs/tune/tiny: contains no search" in err) == (4, True)
