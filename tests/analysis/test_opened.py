"""Runs that analyses open: each once, at the checkpoints that are asked for, and compared only if alike."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lm.analysis.opened import Opened, OpenedText, alike
from lm.cli import main
from lm.errors import ConfigError, DataError
from lm.language.evaluate import Text
from lm.language.trained import TrainedLm
from lm.runs.checkpoint import CheckpointStore
from tests.support.tiny_lm import write_run

Ending = Callable[..., tuple[int, str, str]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Run and checkpoint of every model that is loaded."""
    found: list[tuple[str, str]] = []
    load = TrainedLm.load

    def noted(run: Path, checkpoint: str) -> TrainedLm:
        found.append((str(run), checkpoint))
        return load(run, checkpoint)

    monkeypatch.setattr(TrainedLm, "load", noted)
    return found


@pytest.mark.parametrize("command", ["temperature", "gradient", "geometry", "histories", "unargmaxable"])
@pytest.mark.parametrize(
    "options", ["--checkpoint best --over-training", "--over-training --checkpoint last"]
)
def test_a_checkpoint_is_refused_over_training(ending: Ending, command: str, options: str) -> None:
    code, out, err = ending(main, "analyze", command, "run", *options.split())
    assert (code, out) == (2, "")
    assert err == "--checkpoint: has no effect with --over-training; leave out one of the two\n"


def test_a_repeated_run_is_measured_once(ending: Ending, in_tmp: Path, opened: list[tuple[str, str]]) -> None:
    for name in ("a", "b"):
        write_run(in_tmp / name, temperature="sigmoid")
    lines = [("rank", "--limit", "9"), ("divergence",), ("geometry",), ("temperature",), ("recovery",)]
    for line in lines:
        opened.clear()
        code, _, err = ending(main, "analyze", *line, "b", "a", "./b", "--json", "found.json")
        assert (code, err) == (0, "b: named twice, counts once\n")
        assert list(json.loads(Path("found.json").read_text())["runs"]) == ["b", "a"]
        assert opened == [("b", "best"), ("a", "best")]


def test_over_training_only_stored_checkpoints_are_opened(
    ending: Ending, in_tmp: Path, opened: list[tuple[str, str]]
) -> None:
    store = CheckpointStore.of(write_run(in_tmp / "run", temperature="sigmoid"))
    store.commit(5, {"model": store.weights("step-3")}, {}, {})
    assert ending(main, "analyze", "temperature", "run", "--over-training")[0] == 0
    assert opened == [("run", "step-3"), ("run", "step-5")]


def test_runs_that_read_different_texts_are_named(ending: Ending, in_tmp: Path) -> None:
    write_run(in_tmp / "a")
    (in_tmp / "other").mkdir()
    write_run(in_tmp / "other" / "b", lines=(120, 40, 61))
    for command in ("rank", "divergence", "geometry", "gradient"):
        code, out, err = ending(main, "analyze", command, "a", "other/b", "--limit", "9")
        assert (code, err) == (0, "")
        assert " ".join(out.split()).count("warning: the runs read different texts, so that") == 1
        assert "other/test.txt" in out
        assert "warning" not in ending(main, "analyze", command, "a", "other/b", "--data", "test.txt")[1]


def test_a_missing_test_split_is_told_before_any_run_is_loaded(
    ending: Ending, in_tmp: Path, opened: list[tuple[str, str]]
) -> None:
    write_run(in_tmp / "a")
    (in_tmp / "other").mkdir()
    write_run(in_tmp / "other" / "b")
    (in_tmp / "other" / "test.txt").unlink()
    for command in ("rank", "divergence", "geometry", "gradient"):
        code, out, err = ending(main, "analyze", command, "a", "other/b", "--limit", "9")
        assert (code, out, opened) == (3, "", [])
        assert err.startswith("other/b: ")
        assert "other/test.txt: no such file or folder" in err
        assert "name a text with --data" in err


def test_a_path_that_is_no_run_is_told_before_any_run_is_loaded(
    ending: Ending, in_tmp: Path, opened: list[tuple[str, str]]
) -> None:
    write_run(in_tmp / "a")
    for command in ("rank", "divergence", "geometry", "gradient", "unargmaxable"):
        code, out, err = ending(main, "analyze", command, "a", "absent")
        assert (code, out, err, opened) == (4, "", "absent: no such run; check the path\n", [])


@pytest.mark.parametrize(
    ("command", "settings", "message"),
    [
        ("unargmaxable", {"kind": "mfs", "partitions": 2}, "logits are not one matrix times a context"),
        ("unargmaxable", {"temperature": "sigmoid"}, "logits are not one matrix times a context"),
        ("unargmaxable", {"kind": "relu"}, "words tie"),
        ("gates", {"trunk": "transformer"}, "no recurrent layers"),
    ],
)
def test_a_run_that_does_not_fit_is_told_before_any_run_is_loaded(
    ending: Ending,
    in_tmp: Path,
    opened: list[tuple[str, str]],
    command: str,
    settings: dict[str, Any],
    message: str,
) -> None:
    write_run(in_tmp / "a")
    write_run(in_tmp / "b", **settings)
    code, out, err = ending(main, "analyze", command, "a", "b", "--json", "found.json")
    assert (code, out, opened) == (2, "", [])
    assert err.startswith("b: ")
    assert message in err


def step(name: str, words: str, ids: Sequence[int], source: str) -> OpenedText:
    trained = SimpleNamespace(codec=SimpleNamespace(vocabulary=SimpleNamespace(tokens=words.split())))
    text = Text("test", source, np.array(ids, np.uint16), "", None)
    return Opened(Path(name), name, "best", None, trained), text  # type: ignore[arg-type]


def test_models_are_alike_if_they_have_the_words_and_the_text_of_the_first() -> None:
    first = step("a", "x y", [0, 1], "a.txt")
    same = [first, step("b", "x y", [0, 1], "b.txt"), step("c", "x y", [0, 1], "a.txt")]
    assert [*alike(iter(same))] == same
    with pytest.raises(DataError, match=r"vocabularies, of 2 and 3 words, .*; train both on one corpus"):
        [*alike(iter([*same, step("d", "x y z", [0, 1], "a.txt")]), texts=False)]
    other = step("d", "x y", [1, 0], "d.txt")
    with pytest.raises(ConfigError, match=r"^a and d have different test splits; name one text with --data$"):
        [*alike(iter([*same, other]))]
    assert [*alike(iter([first, other]), texts=False)] == [first, other]
    with pytest.raises(ConfigError, match=r"^a and d tokenize a\.txt differently; train both on one corpus$"):
        [*alike(iter([first, step("d", "x y", [0, 1, 1], "a.txt")]))]
