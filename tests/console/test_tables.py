"""Tables and numbers: whole at every width, one format for each kind, the same in Markdown and CSV."""

import csv
import io
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from lm.console.app import new_app, run_app
from lm.console.output import show
from lm.console.tables import Table
from lm.errors import DivergenceError
from lm.measures import guessing, guessing_note, require_learnt
from lm.numbers import number, shown

WORDS = st.text("abcdefg", min_size=1, max_size=9)
VALUES = st.one_of(st.integers(0, 10**7), st.floats(0, 1e6), st.none(), WORDS)


@st.composite
def tables(draw: Callable[..., list[str]]) -> Table:
    names = draw(st.lists(WORDS, min_size=1, max_size=14, unique=True))
    rows = draw(st.lists(st.fixed_dictionaries(dict.fromkeys(names, VALUES)), min_size=1, max_size=9))  # type: ignore[arg-type]
    return Table("Title", rows, upright=len(rows) == 1 and len(names) > 5)  # type: ignore[arg-type]


def drawn(table: Table, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(table)
    return console.export_text()


@settings(max_examples=150, deadline=None)
@given(tables(), st.sampled_from([40, 60, 80, 120]))
def test_every_cell_of_every_table_is_whole(table: Table, width: int) -> None:
    text = drawn(table, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    told = text.split()
    for row in table.cells():
        for name, cell in row.items():
            assert name in told
            assert cell in told


@pytest.mark.parametrize(("width", "pieces", "side"), [(200, 1, False), (80, 1, True), (50, 2, True)])
def test_a_table_that_is_too_wide_is_turned_and_then_split(width: int, pieces: int, side: bool) -> None:
    rows = [{"run": f"runs/demo/a{n}"} | {f"measure-{m}": 1000 * n + m for m in range(12)} for n in range(4)]
    text = drawn(Table("T", rows if pieces == 1 else rows * 5), width)
    assert "T, in runs/demo/" in text
    assert "runs/demo/a" not in text
    assert ("(2 of" in text) == (pieces > 1)
    first = [line.split()[1] for line in text.splitlines() if line.startswith("│")]
    assert ("measure-3" in first) == (side and pieces == 1)


def test_long_text_goes_over_lines_and_short_text_does_not() -> None:
    about = "a mixture of softmaxes with contextual temperature and so on " * 2
    text = drawn(Table("T", [{"preset": "ptb_mos", "about": about, "parameters": 24_474_220}]), 60)
    assert "24,474,220" in text
    assert [word for word in text.split() if word in about.split()] == about.split()


def test_runs_keep_the_names_that_have_no_common_folder() -> None:
    def names(*runs: str) -> list[str]:
        return [row["run"] for row in Table("T", [{"run": run, "n": 1} for run in runs]).cells()]

    assert names("runs/a", "runs/b") == ["a", "b"]
    assert names("runs/x/a", "runs/b") == ["x/a", "b"]
    assert names("a", "runs/b") == ["a", "runs/b"]
    assert names("/x/a", "x/b") == ["/x/a", "x/b"]
    assert names("runs/a") == ["runs/a"]
    assert names("runs/a", "runs/a") == ["runs/a", "runs/a"]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("perplexity", 54.4123, "54.41"), ("perplexity, MC dropout", 5494.3, "5,494"), ("ppl", 8.26, "8.26"),
        ("nll", 4.02041, "4.0204"), ("excess nats a token", 1.4, "1.4000"), ("minutes", 1.9, "1.9"),
        ("length_ratio", 0.947, "0.947"), ("mean_length", 4.25, "4.2"),
        ("oov_rate", 0.007761, "0.8%"), ("most common", 0.891, "89.1%"), ("share", 1.0, "100.0%"),
        ("BLEU-1 P", 0.09712, "0.097"), ("distinct-2", 0.362, "0.362"), ("tokens", 1234567, "1,234,567"),
        ("p", 0.00019998, "0.0002"), ("p", 1e-6, "<0.0001"), ("p", 0.0, "0.0000"),
        ("parameters", 10, "10"), ("lr", 0.0049, "0.0049"),
        ("x", 12345.6, "12,346"), ("nll", 1.612296e30, "1.61e+30"), ("nll", -1e12, "-1e+12"),
        ("nats", -1e-5, "0.0000"), ("nats", -1e-4, "-0.0001"),
        ("nll", float("nan"), "–"), ("perplexity", float("inf"), "∞"), ("temperature", 1.25, "1.25"),
    ],
)  # fmt: skip
def test_one_format_for_each_kind_of_number(name: str, value: float, text: str) -> None:
    assert number(name, value) == shown(name, value) == text


def test_huge_perplexities_are_short_in_messages() -> None:
    assert "perplexity of 2.52e+30 is more than twice that of guessing" in guessing_note(70.0, 10)
    assert "perplexity of 18.17 is near guessing" in guessing_note(2.9, 10)
    with pytest.raises(DivergenceError, match=r"perplexity is 2\.52e\+30, where guessing"):
        require_learnt(70.0, 10, Path("run"))


@pytest.mark.parametrize(("words", "limit"), [(1, 1), (2, 1.9), (5, 4.43), (10_000, 5_012), (50_000, 22_211)])
def test_near_guessing_is_a_share_of_the_nats(words: int, limit: float) -> None:
    assert guessing(math.log(limit * 1.01), words)
    assert not guessing(math.log(limit * 0.99), words)


def test_a_model_has_learnt_nothing_from_twice_the_perplexity_of_guessing_on() -> None:
    require_learnt(math.log(19.9), 10, Path("run"))
    for nll in (math.log(20), math.nan, math.inf):
        with pytest.raises(DivergenceError):
            require_learnt(nll, 10, Path("run"))


def test_what_is_no_number_is_text() -> None:
    assert [shown("n", value) for value in (None, True, "a\nb", "[b]")] == ["–", "True", "a\\nb", "[b]"]


def test_markdown_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    app = new_app("Shows.")
    rows = [
        {"run": "r/a", "perplexity": 54.4123456, "note": "x|y"},
        {"run": "r/b", "perplexity": None, "note": "z"},
    ]

    @app.command()
    def tables() -> None:
        show(Table("T", rows), "a line", Table("U", [{"p": 0.25}], upright=True))

    @app.command()
    def other() -> None:
        pass

    def run(*arguments: str) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ending:
            run_app(app, "x", arguments)
        assert not ending.value.code
        captured = capsys.readouterr()
        return captured.out, captured.err

    out, err = run("tables", "--csv")
    assert err == "a line\n"
    first, second = out.split("\n\n")
    assert list(csv.DictReader(io.StringIO(first))) == [
        {name: "" if value is None else str(value) for name, value in row.items()} for row in rows
    ]
    assert second == "measure,value\np,0.25\n"
    out, err = run("--markdown", "tables")
    assert err == ""
    assert "**T, in r/**\n\n| run | perplexity | note |\n| --- | ---: | --- |\n| a | 54.41 | x\\|y |\n" in out
    assert "\na line\n" in out
    assert "| measure | value |\n| --- | ---: |\n| p | 0.2500 |\n" in out
    assert "┃" in run("tables")[0]
