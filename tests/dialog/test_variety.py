"""Variety of the responses of people: equal to the yardstick of an evaluation, and to a count by hand."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dialog.cli import main
from dialog.evaluate import evaluate
from dialog.tables import evaluation_tables
from dialog.variety import human_variety
from lm.console.tables import Table
from lm.errors import DataError
from tests.support.command_lines import Outcome
from tests.support.tiny_dialog import train_dialog, write_corpus


def test_people_vary_as_much_as_the_yardstick_of_an_evaluation(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path)
    corpus.write_text(corpus.read_text().replace("take a coat", "take <unk> coat"))
    run = train_dialog(corpus, tmp_path / "run", "train.max_steps=1")
    result = evaluate(run)
    human = result.report.yardsticks.true_response.scores.diversity
    for source in (run, corpus):
        found = human_variety(str(source))
        assert (found.diversity, found.tokenizer) == (human, "wordpunct")
        assert found.contexts == result.likelihood.contexts
    shown = [table for table in evaluation_tables(result) if isinstance(table, Table)][1]
    assert [row["answers"] for row in shown.cells()] == ["model", "true response"]


def test_the_command_counts_by_corpus(in_tmp: Path, ending: Callable[..., Outcome]) -> None:
    Path("talk.txt").write_text("A: hello\nB: oh yes\nA: oh yes\nB: oh , Oh !\n\n")
    code, out, _ = ending(main, "distinct", "talk.txt", "smalltalk:test", "--limit", "3", "--json", "d.json")
    assert code == 0
    assert "'oh yes'" in out
    first, second = json.loads(Path("d.json").read_text())["corpora"]
    assert (first["source"], first["contexts"], second["contexts"]) == ("talk.txt", 3, 3)
    assert (first["inter_distinct_1"], first["inter_distinct_2"]) == pytest.approx((1, 2 / 3))
    assert (first["most_common_share"], first["mean_length"]) == pytest.approx((2 / 3, 5 / 3))


def test_a_source_without_a_context_is_refused(in_tmp: Path, ending: Callable[..., Outcome]) -> None:
    Path("talk.txt").write_text("A: hello\n\n")
    with pytest.raises(DataError, match="a response needs an utterance before it"):
        human_variety("talk.txt")
    code, _, error = ending(main, "distinct", "missing.txt")
    assert (code, error.count("\n")) == (3, 1)
