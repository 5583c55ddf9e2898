"""Files of scored lines: texts read as evaluation does, and groups of lines."""

import json
from pathlib import Path

import numpy as np
import pytest

from lm.errors import DataError
from lm.language.corpora.corpus import load_split
from lm.language.evaluate import (
    evaluate,
)
from lm.language.scoring import score_file, score_lines, token_nll
from lm.language.tables import scoring_tables
from lm.language.trained import TrainedLm
from tests.support.tiny_lm import cells, tiny_codec, write_run


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("char", b"a b _ c\nd e _ h a\n"),  # as the characters of the Penn Treebank are spelled
        ("char", b"ab c\nde ha\n"),
        ("byte", b"\xef\xbb\xbfabc\r\n\xff\nhead"),
    ],
)
def test_score_reads_a_text_as_evaluate_does(kind: str, text: bytes, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", codec=tiny_codec(kind))
    path = tmp_path / "some.txt"
    path.write_bytes(text)
    ids = load_split(str(path), TrainedLm.load(run).codec).ids()
    result = score_file(run, path, tmp_path / "scores.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert result.tokens == len(ids)
    expected = token_nll(TrainedLm.load(run), ids)
    np.testing.assert_allclose([-value for row in rows for value in row["log_probs"]], expected, atol=1e-5)


def test_a_long_line_of_bytes_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = TrainedLm.load(write_run(tmp_path / "run", codec=tiny_codec("byte")))
    path = tmp_path / "some.txt"
    path.write_bytes(b"abcdefgh\nhead")
    whole = list(score_lines(trained, path, independent=True))
    monkeypatch.setattr("lm.text.parts.BYTES_AT_ONCE", 3)
    pieces = list(score_lines(trained, path, independent=True))
    assert [row.line for row in pieces] == [1, 1, 1, 2, 2]
    for number, row in enumerate(whole, 1):
        values = [value for piece in pieces if piece.line == number for value in piece.log_probs]
        np.testing.assert_allclose(values, row.log_probs, atol=1e-5)


def test_groups_of_lines_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run")
    trained = TrainedLm.load(run)
    whole = [row.nll for row in score_lines(trained, tmp_path / "test.txt")]
    monkeypatch.setattr("lm.language.scoring.TOKENS_TOGETHER", 3)
    assert [row.nll for row in score_lines(trained, tmp_path / "test.txt")] == pytest.approx(whole, abs=1e-5)


def test_a_scored_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run"), tmp_path / "scores.jsonl"
    (tmp_path / "bad.txt").write_bytes(b"you\n" * 9 + b"\xff\n")
    with pytest.raises(DataError, match=r"bad\.txt:10.* from its own encoding$"):
        score_file(run, tmp_path / "bad.txt", out)
    assert not list(tmp_path.glob("*scores*"))
    result = score_file(run, tmp_path / "test.txt", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert (result.lines, result.tokens) == (len(rows), sum(len(row["tokens"]) for row in rows))
    assert result.nll == pytest.approx(evaluate(run).likelihood.nll, abs=1e-5)
    shown = {row["measure"]: row["value"] for row in cells(scoring_tables(result)[0])}
    assert list(shown) == ["lines", "tokens", "nll", "perplexity"]
    assert shown["tokens"] == f"{result.tokens:,}"
