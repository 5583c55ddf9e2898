"""The code of docs/huggingface.md that opens exported folders."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from dialog.export import export_run as export_dialog
from lm.export import export_run as export_lm
from tests.support.tiny_dialog import train_dialog, write_corpus
from tests.support.tiny_lm import write_run

PAGE = Path(__file__).parents[2] / "docs" / "huggingface.md"


def talk(folder: Path) -> None:
    export_dialog(train_dialog(write_corpus(folder), folder / "run"), folder / "exported" / "smalltalk")


def text(folder: Path) -> None:
    export_lm(write_run(folder / "run", lines=(5, 2, 2), kind="softmax"), folder / "exported" / "mos")


@pytest.mark.parametrize(("module", "export"), [("dialog.hf", talk), ("lm.hf", text)])
def test_it_runs(
    module: str, export: Callable[[Path], None], in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(in_tmp)
    (code,) = re.findall(rf"^```python\n(import {module}.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    capsys.readouterr()
    exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out.strip()
