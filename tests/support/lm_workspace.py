"""A folder in which ``lm`` runs: a prepared text, trained runs, and results of commands."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dialog.config import DialogConfig
from lm.cli import main
from lm.config.load import Resolved, save_config
from tests.support.command_lines import Outcome
from tests.support.kept_records import keep_record
from tests.support.tiny_lm import text_of

TINY = """
[data]
train = "p/train"
valid = "p/valid"
test = "p/test"
[window]
length = 10
[model]
embedding_size = 6
hidden_sizes = [7, 6]
[head]
kind = "mos"
components = 2
tied = true
[optim]
name = "sgd"
lr = 1.0
[train]
max_steps = 6
batch_size = 4
validate_every = 2
checkpoint_every = 1
keep_last = 6
device = "cpu"
"""
FEWER = ("--set", "head.kind=softmax", "--set", "head.components=1")
COMMON = {"command", "config", "versions", "seed", "device"}
Lm = Callable[..., Outcome]


def make_workspace(folder: Path) -> Path:
    """Fill a folder with a prepared text, two trained runs, and a run of dialog."""
    (folder / "text.txt").write_text(text_of(300, 1), encoding="utf-8")
    (folder / "tiny.toml").write_text(TINY)
    prepared = ("prepare", "text.txt", "--out", "p", "--valid-fraction", "0.2", "--test-fraction", "0.2")
    with contextlib.chdir(folder):
        for arguments in (
            prepared,
            ("train", "tiny.toml"),
            ("train", "tiny.toml", "--run", "runs/soft", *FEWER),
        ):
            with pytest.raises(SystemExit) as ending:
                main(arguments)
            assert not ending.value.code, arguments
    (folder / "talk").mkdir()
    save_config(Resolved(DialogConfig(), {}), folder / "talk" / "config.json")
    keep_record(folder / "talk", "test", {"data": {"sha256": ""}, "perplexity": 2.0}, {"nll": [1.0]})
    return folder


def measured(lm: Lm, *arguments: str) -> tuple[dict[str, Any], str]:
    """What a command writes to ``--json`` and shows; it has the fields that all results have."""
    code, out, err = lm(*arguments, "--json", "result.json")
    assert (code, err) == (0, "")
    text = Path("result.json").read_text()
    Path("result.json").unlink()
    result: dict[str, Any] = json.loads(text)
    assert result.keys() >= COMMON
    assert result["command"].split()[:2] == ["lm", arguments[0]]
    assert result["versions"].keys() >= {"highrank", "python", "torch"}
    return result, out


def names(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}
