"""Evaluations of dialog models that are refused or interrupted, and files that hold no hypotheses."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dialog.config import DataConfig
from dialog.evaluate import (
    evaluate,
    load_test_set,
    rescore,
)
from dialog.metrics.references import build_references, write_references
from dialog.utterance import Dialog, Utterance
from dialog.variety import human_variety
from lm.errors import ConfigError, DataError, StorageError
from tests.support.evaluable_run import conversations, evaluable_run, write_dialogs
from tests.support.signals import signal_at


@pytest.fixture
def run(in_tmp: Path) -> Path:
    return evaluable_run(in_tmp)


def test_settings_without_effect_are_refused_where_they_are_given(run: Path) -> None:
    sample = "decode.method=sample"
    for first, key, value, method, other in (
        (sample, "beam", "4", "sample", "beam"),
        (sample, "groups", "1", "sample", "beam"),
        ("decode.beam=2", "top_k", "5", "beam", "sample"),
        ("decode.beam=2", "seed", "7", "beam", "sample"),
    ):
        told = refusal(run, ConfigError, overrides=[first, f"decode.{key}={value}"])
        remedy = f"leave it out, or choose decode.method = {other}"
        assert told == f"--set decode.{key}: has no effect with decode.method = {method}; {remedy}"
    assert (
        evaluate(run, overrides=[sample, "decode.top_k=5"], limit=2).name
        == "test.first-2.method-sample.top_k-5"
    )


def test_references_are_read_before_they_are_judged(run: Path) -> None:
    references = Path("refs.json")
    for content, kind, told in (
        ('{"a":', DataError, "refs.json:1:6: not JSON"),
        ('[{"context": [], "responses": ["yes"]}]', ConfigError, "refs.json: lacks the last responses"),
    ):
        references.write_text(content, encoding="utf-8")
        with pytest.raises(kind, match=told):
            load_test_set(None, references, None, DataConfig(last_response=True))


def test_a_missing_test_split_is_named_by_its_key(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "elsewhere").mkdir()
    monkeypatch.chdir(run / "elsewhere")
    told = (
        "test.jsonl: no such file or folder; it is data.test of the run's config, relative to the folder of"
        " the training; run the command in that folder, or name a "
    )
    assert refusal(run, DataError) == f"{told}corpus with --data"
    with pytest.raises(DataError) as error:
        human_variety(str(run))
    assert str(error.value) == f"{told}corpus instead of the run"


def refusal(run: Path, kind: type[Exception], **options: Any) -> str:
    """The line that evaluating a run like this ends with."""
    with pytest.raises(kind) as caught:
        evaluate(run, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def test_bad_input_leaves_nothing_behind(run: Path) -> None:
    write_references(Path("refs.json"), build_references([], conversations(8)))
    write_dialogs(
        Path("greek.jsonl"), [Dialog("x", "", (Utterance("A", "χαίρετε κόσμε"), Utterance("B", "γεια")))]
    )
    before = contents(run.parent)
    references = refusal(run, DataError, references=Path("refs.json"))
    assert "15 of 15 contexts have no item" in references
    assert "100% of its tokens are unknown to the run" in refusal(run, DataError, data="greek.jsonl")
    assert "nowhere.jsonl" in refusal(run, DataError, data="nowhere.jsonl")
    assert "--limit 0" in refusal(run, ConfigError, limit=0)
    assert "decode.baem" in refusal(run, ConfigError, overrides=["decode.baem=3"])
    assert "only decode.*" in refusal(run, ConfigError, overrides=["model.dropout=0.5"])
    assert "its folder does not exist" in refusal(run, StorageError, output=Path("no/where.jsonl"))
    assert "step-7" in refusal(run, StorageError, checkpoint="step-7")
    assert "a folder of runs, not a run; name one of them" in refusal(run.parent, StorageError)
    assert contents(run.parent) == before


def test_an_interrupted_evaluation_writes_whole_files_or_none(run: Path) -> None:
    """A signal at moments of all the work, and at every one of the end, which writes."""
    hypotheses = Path("hyps.jsonl")
    before = contents(run.parent)
    evaluated = partial(evaluate, run, output=hypotheses, limit=3)
    evaluated()
    whole = contents(run.parent)
    with signal_at() as calls:
        evaluated()
    assert contents(run.parent) == whole
    assert calls[0] > 1000
    late = 0
    for call in (*range(1, calls[0] - 60, calls[0] // 12), *range(calls[0] - 60, calls[0], 3)):
        shutil.rmtree(run / "evaluation", ignore_errors=True)
        hypotheses.unlink(missing_ok=True)
        with pytest.raises(KeyboardInterrupt), signal_at(call):
            evaluated()
        left = contents(run.parent)
        assert left.items() <= whole.items()
        assert left.keys() >= before.keys()
        late += left != before
    assert late, "some came while or after files were written"


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", '{"hypotheses": []}', "nonsense", '{"hypotheses": [], "references"']
)
def test_files_that_are_not_hypotheses_are_named_with_the_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "hyps.jsonl"
    path.write_text('{"hypotheses": [["a"]], "references": [["a"]]}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"hyps\.jsonl:2: "):
        rescore(path)


def test_hypotheses_that_are_text_are_refused_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "hyps.jsonl"
    path.write_text('{"hypotheses": ["a b"], "references": [["a"]]}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"hyps\.jsonl:1: not an object with lists of tokens"):
        rescore(path)
